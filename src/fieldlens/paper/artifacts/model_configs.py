"""The configuration of the paper's model and of ours."""

from fieldlens.models.decoder import Config
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.printed import facts
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.table import Table
from fieldlens.schemes.spec import scheme
from fieldlens.training.recipe import Recipe
from fieldlens.training.trainer import shape


class ModelConfigs(Artifact):
    name, kind, stand_ins = "model_configs", "table", False
    title = "Configuration of the model"

    def draw(self, results: PaperResults) -> Drawn:
        recipe = next(job.recipe for job in results.study.whole if job.recipe.scheme == "sandwich")
        printed, ours = facts(f"tab:{self.name}"), _ours(recipe)
        records = [
            {"setting": setting, "paper": value, "ours": ours[setting]} for (setting, _), value in printed.items()
        ]
        note = "The paper's hidden size is that of one head; its model is 768 wide."
        return Drawn(
            [Table(["setting", "paper", "ours"], [list(row.values()) for row in records], "", (note,))], records=records
        )


def parameters(config: Config) -> int:
    """Number of parameters of a decoder without its scheme's: 2VD + R(12D² + 13D) + 2D, VD if embeddings are tied.

    Computed without building the model, which takes seconds and 650 MB at the paper's size.
    """
    width, embeddings = config.width, 1 if config.tied else 2
    return embeddings * config.vocab_size * width + config.layers * (12 * width**2 + 13 * width) + 2 * width


def _ours(recipe: Recipe) -> dict[str, str]:
    config = shape(recipe, recipe.bpe)
    count = parameters(config)
    position_scheme = scheme(config.scheme, config.heads, config.width // config.heads)
    learned = sum(parameter.numel() for parameter in position_scheme.parameters())
    large = count >= 100_000_000
    return {
        "# Layers": str(recipe.layers),
        "Hidden Size": f"{recipe.width // recipe.heads} (a head; the model is {recipe.width} wide)",
        "# Attention Heads": str(recipe.heads),
        "Train Seq. Len.": str(recipe.length),
        "# Trainable Params.": f"{count / 1e6:.0f}M" if large else f"{count / 1e6:.2f}M",
        "Optimizer": f"Adam (lr {recipe.learning_rate:g})",
        "Batch Size": str(recipe.batch),
        "Train Steps": f"{recipe.steps:,}",
        "Precision": "bfloat16 on a GPU, float32 on a CPU",
        "# Trainable Params. for RPEs": str(learned),
    }
