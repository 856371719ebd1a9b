"""Test the tests: plant one bug at a time in a copy of the source and expect the suite to turn red.

Example: python tests/plant.py
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

# What is wrong, the file, the right text, the wrong text.
BUGS = [
    ("Ctrl-C leaves a traceback", "__main__.py", "except KeyboardInterrupt:", "except ZeroDivisionError:"),
    ("memory given back each step", "core/device.py", "        keep_pages()\n", ""),
    ("Ctrl-C aborts inside torch", "__main__.py", "signal.signal(signal.SIGINT, _interrupt)", "pass"),
    ("a full disk is a riddle", "core/errors.py", "errno.ENOSPC, errno.EDQUOT", "errno.EDQUOT, errno.EIO"),
    ("help waits for torch", "cli/__init__.py", "import inspect\n", "import inspect\n\nimport torch  # noqa: F401\n"),
    ("numbers cut on a narrow terminal", "reporting/table.py", "no_wrap=fixed", "width=5"),
    ("a measurement keeps no segment", "receptive/runner.py", "            if journal:\n                journal.append", "            if journal and False:\n                journal.append"),
    ("a cut record of a journal is believed", "storage/journal.py", "if stop > len(data) or hashlib", "if False and hashlib"),
    ("output is not tried before the work", "cli/measure.py", "    check_folder(out)\n", ""),
    ("lack of memory leaves a traceback", "core/memory.py", "    if isinstance(error, MemoryError):\n        return True\n", ""),
    ("a full disk in Rust leaves a traceback", "core/faults.py", "_RUST.search(str(error))", "None"),
    ("a layer too many for any memory", "models/size.py", "    if needed > available:", "    if needed < 0:"),
    ("closed streams stay closed", "__main__.py", "    _open_closed_streams()\n    try", "    try"),
    ("a damaged manifest is somebody else's", "storage/folders.py", " or text.count(b'\"sha256\": \"') > 1", ""),
    ("a row without a seal is believed", "storage/run_dir.py", "row if row.keys() <= _UNSEALED else {}", "row"),
    ("an estimate for every window", "receptive/rounds.py", "            if isinstance(event, Progress):", "            if not isinstance(event, Progress):\n                self.watch(event)\n            else:"),
    ("a round too many", "receptive/rounds.py", "if self.done >= self._expected(self.done):", "if self.done > self._expected(self.done):"),
    ("targets twice in rounds", "receptive/rounds.py", "if anchor not in before]", "]"),
    ("a context that is longer", "evaluation/protocols/consecutive.py", "last - length, last, scored", "last - length - 1, last, scored"),
    ("a guess as a decision", "receptive/decision.py", "if smallest is not None:", "if smallest is not None or candidates[0].contrast.ratio < 1.02:"),
    ("a plugin that adds nothing", "schemes/validation.py", "if original.score_factor == 1 and not arguments:", "if original.score_factor != 1 and not arguments:"),
    ("more than the budget", "receptive/budget.py", "<= RESERVE * seconds", "<= 9 * seconds"),
    ("a model called model", "models/origin.py", "r\"model|weights|", "r\"weights|"),
    ("numbers with exponents", "reporting/table.py", "10**digits <= abs(value) < 1e6", "abs(value) > 1e6"),
    ("a riddle outside the repository", "paper/results.py", "if self.folder.is_dir():", "if self.folder:"),
    ("the hub is asked in vain", "models/hub.py", "local_files_only=offline", "local_files_only=False"),
    ("window off by one", "kernels/layout.py", "(distances < (window", "(distances <= (window"),
    ("one future token visible", "kernels/layout.py", "(distances >= 0) &", "(distances >= -1) &"),
    ("a key too few under a window", "kernels/layout.py", "(self.window or UNBOUNDED) + 1)", "(self.window or UNBOUNDED) + 2)"),
    ("padding attended to", "kernels/layout.py", " & (self.k_positions_BS >= 0)[:, None, keys]", ""),
    ("bias gradient one distance off", "kernels/layout.py", "F.pad(d_mask.sum(0), (0, t + 1))", "F.pad(d_mask.sum(0), (1, t))"),
    ("fully masked queries not zeroed", "kernels/layout.py", "rows.masked_fill(masked, 0)", "rows"),
    ("keys not rotated", "kernels/attention.py", "apply_rotary(k_BHSK, terms.k_rotation)", "k_BHSK"),
    ("keys stretched like queries", "kernels/rotary.py", "1 / k_magnitudes", "k_magnitudes"),
    ("the scale of queries dropped", "kernels/attention.py", "(q_BHTK * terms.q_scale).to(q_BHTK.dtype)", "q_BHTK"),
    ("one visible key too many", "kernels/layout.py", "- nearest_T + 1)[None]", "- nearest_T + 2)[None]"),
    ("a mask of inference mode kept", "kernels/flex.py", "@torch.inference_mode(False)  # a mask", "# a mask"),
    ("too many shapes are an error", "kernels/attention.py", "except TooManyShapes:", "except ZeroDivisionError:"),
    ("the kernel of short texts untold", "kernels/selection.py", "choices.add(SHORT)", "pass"),
    ("the gradient of sinks", "kernels/cpu_flash.py", "(-weight * (d_out_i * out_i)", "(weight * (d_out_i * out_i)"),
    ("sinks not shifted", "kernels/key_terms.py", "else sink_BHt - shift", "else sink_BHt"),
    ("decays in the order of the cache", "kernels/content.py", "decay_BHS.gather(2, order_BHS).cumsum(2)", "decay_BHS.cumsum(2)"),
    ("scores without their bias", "kernels/general.py", "    logits = scheme.attention_logits(block)\n", "    logits = block.scores_BHts\n"),
    ("a pattern that starts late", "schemes/layers.py", "pattern[number % len(pattern)]", "pattern[(number + 1) % len(pattern)]"),
    ("YaRN without its factor", "schemes/rotary.py", "self.score_factor = (0.1 * math.log(factor) + 1) ** 2", "pass"),
    ("invisible keys counted by CoPE", "schemes/base.py", "values_BHts.masked_fill(~self.visible_Bts[:, None], 0)", "values_BHts"),
    ("flex: a batch of another size compiles again", "kernels/flex.py", "torch._dynamo.maybe_mark_dynamic(tensor, 0)", "pass"),
    ("bfloat16 called a learned bias", "kernels/selection.py", "\"learned bias\" if case.dtype in WIDE else", "\"learned bias\" if case.dtype else"),
    ("the kernel of the last query untold", "models/adapters/decoder.py", ", last_queries=True", ""),
    ("a full disk fails a run for good", "study/controller.py", "if code == MachineFault.exit_code:", "if False:"),
    ("a full disk is a traceback in a worker", "study/job.py", "        if explanation is None:\n            raise", "        raise"),
    ("a gradient delays Ctrl-C", "receptive/explorer/server.py", "        explore.worker.cancel()\n", ""),
    ("errors of the page in the terminal", "receptive/explorer/server.py", "lambda future: future.cancelled() or future.exception()", "lambda future: None"),
    ("a foreign folder loaded without a word", "models/loading.py", "and not has_manifest(origin.path)", "and False"),
    ("flex: a bias one distance off", "kernels/flex.py", "score = score + table_HN[h, distance]", "score = score + table_HN[h, (distance - 1).clamp(min=0)]"),
    ("flex: closed forms of another head", "kernels/flex.py", "[x_H[h] for x_H in", "[x_H[0] for x_H in"),
    ("flex: a window one key too wide", "kernels/flex.py", "(distance >= 0) & (distance < width)", "(distance >= 0) & (distance <= width)"),
    ("flex: a full block that is cut", "kernels/flex.py", "full = (nearest >= 0) & (farthest < width)", "full = (nearest >= 0) & (nearest < width)"),
    ("flex: a block too few", "kernels/flex.py", "reached = (farthest >= 0) & (nearest < width)", "reached = (farthest >= 0) & (farthest < width)"),
    ("flex: the fold forgets D", "kernels/flex.py", "((d_out_i * out_i).sum(-1) - d_lse_i)", "(0 * (d_out_i * out_i).sum(-1) - d_lse_i)"),
    ("flex: the fold forgets the normaliser", "kernels/flex.py", "((d_out_i * out_i).sum(-1) - d_lse_i)", "((d_out_i * out_i).sum(-1))"),
    ("flex: sinks not shifted", "kernels/flex.py", "sink if shift is None else sink - shift", "sink"),
    ("flex: low parts of decays dropped", "kernels/flex.py", "(high + (columns.k_low[b, h, j] - columns.q_low[b, h, i]))", "high"),
    ("flex: a subclass with the curve of its parent", "kernels/flex.py", "return issubclass(*definers)", "return True"),
    ("threads that compete", "core/cores.py", "(os.cpu_count() or 1) - running_elsewhere()", "(os.cpu_count() or 1)"),
    ("a resumed run with other threads", "cli/train.py", "machine if threads is None else machine.with_free_cores(threads)", "machine.with_free_cores()"),
    ("a doctor who is content", "cli/doctor.py", "all(error <= tolerance for", "all(error >= 0 for"),
    ("flex on narrow heads", "kernels/selection.py", "width < flex.MIN_HEAD_WIDTH,", "False,"),
    ("scores rounded by autocast", "kernels/attention.py", "if torch.is_autocast_enabled(q_BHTK.device.type):", "if False:"),
    ("bias sign", "kernels/attention.py", "table_HN.to(accumulation_dtype(like))", "-table_HN.to(accumulation_dtype(like))"),
    ("bias in half precision", "kernels/attention.py", "table_HN.to(accumulation_dtype(like))", "table_HN.to(like.dtype)"),
    ("last position: one token too few", "models/decoder.py", "counts[0] + window - 1)", "counts[0] + window - 2)"),
    ("residual initialised too wide", "models/decoder.py", 'name.endswith("_out")', 'name.endswith("nothing")'),
    ("a cache filled twice", "models/decoder.py", "self.checkpointing and cache is None and", "self.checkpointing and"),
    ("validated by one document", "training/trainer.py", "len(self.validation_ids) - 1 - length, count)", "length, count)"),
    ("times of a busy clock", "paper/results.py", '"train_cpu" if _on_cpu(result) else "train"', '"train"'),
    ("learned biases decay", "models/decoder.py", " and id(p) not in excluded]", "]"),
    ("frequency index", "schemes/sandwich.py", "arange(first, first +", "arange(1 + first, 1 + first +"),
    ("missing 1/h", "schemes/sandwich.py", "wave_N / ratios(self.heads)", "wave_N / torch.ones(self.heads)"),
    ("floor before the shift", "schemes/alibi.py", "max(slope * 2.0**-shift, slope_floor)", "max(slope, slope_floor)"),
    ("missing √K", "schemes/t5.py", "math.sqrt(head_width)", "1.0"),
    ("a vote is let go of too early", "core/distributed.py", "value._use_count() > 1", "value._use_count() > 9"),
    ("random state forgotten", "training/trainer.py", "torch.set_rng_state(", "torch.clone("),
    ("place in the data forgotten", "training/trainer.py", 'self.step = progress["step"]', "pass"),
    ("no fsync", "storage/atomic.py", "os.fsync(", "os.fstat("),
    ("manifest believed", "storage/folders.py", "hash_of(file) == entry[\"sha256\"]", "bool(entry[\"sha256\"])"),
    ("a manifest's own hash believed", "storage/folders.py", "if text != _sealed(content):", "if False:"),
    ("altered results believed", "study/result_folder.py", "if _hash(folder / str(name)) != expected:", "if False:"),
    ("an altered record believed", "storage/sealed.py", "if digest(content) != expected:", "if False:"),
    ("altered arrays believed", "storage/results.py", "or hash_of(arrays) != expected)", "or False)"),
    ("a model folder opened unverified", "models/hf_export.py", "            verify_model_folder(Path(folder))\n", "            pass\n"),
    ("a new field changes every hash", "training/recipe.py", "if name not in ADDED or value != ADDED[name]}", "}"),
    ("idle work for ever", "study/controller.py", "elif self._state(job) in", "elif self._state(job) not in"),
    ("plugins by name", "schemes/spec.py", "[cls.file_hash if len", "[cls.name if len"),
    ("a scheme's own start", "models/decoder.py", 'if name.startswith("scheme."):', 'if name == "scheme":'),
    ("validation as training", "training/trainer.py", "self.decoder.eval()", "self.decoder.train()"),
    ("a formula that changed", "models/loading.py", "    _check_source(origin)\n", ""),
    ("weights alone are a model", "evaluation/compare.py", 'model.get("configuration"), evaluation', "evaluation"),
    ("numbers that get lost", "schemes/validation.py", "if not torch.equal(table, copied_table):", "if False:"),
    ("any text will do", "data/text.py", "if fingerprint not in (None, source.fingerprint()):", "if not corpus:"),
    ("no projection at load", "schemes/base.py", "    scheme.project()", "    pass"),
    ("garbage in a scheme's tables", "models/hf_export.py", "model.decoder.scheme = _rebuild_scheme(model.decoder)", "pass"),
    ("no projection in a foreign loop", "models/hf_export.py", "if self.training:", "if False:"),
    ("adapters passed by", "models/decoder.py", "in self.qkv(", "in [*self.qkv.modules()][-1 if queries == 1 else 0]("),
    ("broken weights accepted", "models/hf_export.py", "if broken:", "if not model:"),
    ("missing weights accepted", "models/hf_export.py", '("missing_keys", ', "("),
    ("padding counted as positions", "models/hf_export.py", ".masked_fill(padding, -1)", ""),
    ("foreign weights missing", "models/loading.py", 'for kind in ("missing_keys", "mismatched_keys")', "for kind in ()"),
    ("a band one key too wide", "models/hf_compat.py", "visible(query - key, window)", "visible(query - key, window + 1)"),
    ("cropped one token short", "schemes/window.py", "for width in widths) + 1 if", "for width in widths) if"),
    ("target one token early", "evaluation/protocols/last_token.py", "- length, anchor.offset, 1)", "- length, anchor.offset - 1, 1)"),
    ("BOS left out", "evaluation/runner.py", "np.concatenate([[self.plan.bos], ids])", "ids"),
    ("journal forgotten", "evaluation/runner.py", 'self.losses_LN[:] = saved["losses"]', "pass"),
    ("stale taken for done", "study/state.py", "return hashes == job.config_hashes", "return True"),
    ("another text taken for the same", "study/state.py", 'record.get("text") != text', "False"),
    ("a job done twice", "study/job.py", 'locks=False) == "done":', 'locks=False) == "gone":'),
    ("trained on with another text", "study/job.py", "mark.read_text() != text", "False"),
    ("no correction", "evaluation/verdict.py", "contrasts, ps, holm(ps)", "contrasts, ps, ps"),
    ("a GGUF's BOS forgotten", "models/gguf_metadata.py", '"tokenizer.ggml.add_bos_token", default', '"", default'),
    ("BOS against the configuration", "data/tokenizer.py", "if adds is False:", "if False:"),
    ("holds by its estimate", "evaluation/equivalence.py", "-limit <= self.low and self.high <= limit", "abs(self.difference) <= limit"),
    ("noise explodes", "evaluation/verdict.py", "row.ratio >= EXPLOSION and row.low > 0", "row.ratio >= EXPLOSION"),
    ("advice by luck", "receptive/check.py", "list(takewhile(", "list(filter("),
    ("advice against a bad length", "receptive/check.py", 'if self.verdict["verdict"] in RISES else', "if False else"),
    ("tokens for documents", "evaluation/result.py", 'return documents_N, "d', 'return np.arange(len(documents_N)), "d'),
    ("stars for copies", "evaluation/statistics.py", "if np.ptp(differences_S) <= tolerance:", "if False:"),
    ("seeds paired by place", "evaluation/compare.py", "sorted(values.keys() & reference.keys())", "list(reference)"),
    ("ties count", "receptive/field.py", "<= level + TIE)", "<= level - TIE)"),
    ("gradient of another token", "receptive/input_gradients.py", "gather(1, truth_B[:, None])", "gather(1, 0 * truth_B[:, None])"),
    ("last query taken from the wrong end", "receptive/last_query.py", "(0, 0, queries - 1, 0)", "(0, 0, 0, queries - 1)"),
    ("round-off taken for a field", "receptive/input_gradients.py", "effect_B > rounding_B", "effect_B > 0"),
    ("layers left in training mode", "receptive/input_gradients.py", "stack.callback(vars(layer).update,", "dict("),
    ("shift not scaled", "paper/scale.py", "- math.log2(factor)", "- 0.0"),
    ("stale results drawn", "paper/results.py", 'self.states[job.name] != "done"', 'self.states[job.name] == "missing"'),
    ("drawn once, fresh for ever", "paper/artifact.py", "drawn != _source(artifact, results)", "not drawn"),
    ("one false answer outvoted", "paper/evidence.py", "False if False in answers else", ""),
    ("a doubt counts as a yes", "paper/evidence.py", "True if all(answers) else None", "True"),
    ("a seed may go its own way", "paper/evidence.py", "for difference in (self.difference, *self.seeds)}", "for difference in (self.difference,)}"),
    ("no test is as good as one", "paper/evidence.py", "if self.p is None or self.p >= ALPHA:", "if self.p is not None and self.p >= ALPHA:"),
    ("the bound not tested", "paper/evidence.py", "sign_flip(differences_N - bound, units_N)", "sign_flip(differences_N, units_N)"),
    ("seeds do not count between models", "paper/evidence.py", "p=max(p_seeds, comparison.p)", "p=comparison.p"),
    ("growth of one model alone", "paper/evidence.py", "differences_SN - _differences(first, second, minus)", "differences_SN"),
    ("a gate that is always open", "paper/evidence.py", "low >= MIN_USE and", "low >= -99 and"),
    ("claims tested without context use", "paper/judge.py", 'raise NotTestable("no context use", *lines)', "pass"),
    ("claims tested without headroom", "paper/judge.py", 'raise NotTestable("no headroom", *lines)', "pass"),
    ("missing tests not counted", "paper/judge.py", "*[1.0] * absent])", "])"),
    ("primary tests corrected one by one", "paper/judge.py", "if name in primary else holm(own)", "if False else holm(own)"),
    ("another corpus outvoted", "paper/judge.py", "if first.verdict in others and len(others) > 1:", "if False:"),
    ("a changed rule unnoticed", "paper/registration.py", "_sha(source + repr(settings))", "_sha(claim.name)"),
    ("shared code changes unnoticed", "paper/registration.py", "(name in seen if name in claims else bool(seen))", "name in seen"),
    ("a rule locked before its result", "paper/registration.py", 'results.states[job.name] == "done" for job in jobs)', "jobs for job in jobs)"),
    ("a wave of any length", "paper/claims/findings.py", "abs(apart / wave - 1) <= WAVELENGTH_TOLERANCE", "apart > 0"),
    ("a jump anywhere", "paper/claims/patterns.py", "lead >= MIN_LEAD and near", "near"),
    ("rows in another order", "study/plan.py", 'if content.get("order", "seeds") == "seeds":', "if True:"),
    ("copies lie in two splits", "data/corpus.py", "return splits[text_indices]", "return np.sort(splits[text_indices])"),
    ("several texts in a row", "models/hf_export.py", "(new_positions > before)", "(new_positions > -1)"),
    ("later checkpoints stay", "storage/checkpoints.py", "[other for other in checkpoints if other > path]", "[]"),
    ("weights that are no numbers are saved", "training/loop.py", "trainer.check_weights()", "pass"),
    ("deaf to a second Ctrl-C", "study/controller.py", "if received() or time", "if time"),
    ("half a time taken for a whole", "study/job.py", "            if complete:", "            if True:"),
    ("the study's recipe not looked at", "paper/artifact.py", "artifact.name, recipes,", "artifact.name,"),
    ("parity of the filling too", "paper/parity.py", "(ids_BT * is_bit_BT).sum(1)", "ids_BT.sum(1)"),
    ("a changed byte unseen", "study/result_folder.py", "_hash(folder / str(name)) != expected", "not (folder / str(name)).is_file()"),
    ("another training unseen", "paper/results.py", "_without_address(name) in trained_otherwise", "False"),
    ("equal times told apart", "paper/claims/costs.py", "max(minimum, noise)", "minimum"),
    ("parity outlives its starter", "paper/parity.py", "threading.Thread(target=exit_with_parent, daemon=True).start()", "pass"),
    ("parity ends its trials before it stops", "paper/parity.py", "child.terminate()", "pass"),
    ("coverage of all tokens", "receptive/field.py", "self.shares()[-tokens:]", "self.shares()"),
    ("a key too few in the cache", "models/kv_cache.py", "else window - 1", "else max(0, window - 2)"),
    ("a key too many in the cache", "models/kv_cache.py", "min(self.seen, self.earlier)", "min(self.seen, self.earlier + 1)"),
    ("the wrong tokens moved", "models/kv_cache.py", "old.narrow(self.axis, self.stop - kept,", "old.narrow(self.axis, 0,"),
    ("gradients lost in the cache", "models/kv_cache.py", "return requires_grad and torch.is_grad_enabled()", "return False"),
    ("padding given positions", "generation/generate.py", "positions_BT.clamp(min=PADDING)", "positions_BT.clamp(min=0)"),
    ("a prompt cut one token short", "generation/engine.py", "ids_BT[:, -reach:], positions[..., -reach:]", "ids_BT[:, 1 - reach :], positions[..., 1 - reach :]"),
    ("re-encoding at running positions", "generation/engine.py", "positions_BS - first_B1", "positions_BS"),
    ("top-p one token short", "generation/sampling.py", "probabilities_BV.cumsum(-1) - probabilities_BV >=", "probabilities_BV.cumsum(-1) >="),
    ("seed forgotten", "generation/sampling.py", "manual_seed(sampling.seed)", "manual_seed(0)"),
    ("half characters shown", "generation/detokenize.py", "complete = len(text) - self._incomplete(text)", "complete = len(text)"),
    ("no band beside the sliding cache", "generation/hf.py", "        with sliding_window_masks(window):", "        with sliding_window_masks(None):"),
    ("an adapter passed by", "models/origin.py", "not (complete and find_spec(\"peft\"))", "not complete"),
    ("tokens over a gap cut", "data/tokenizer.py", "if self.cuttable else [text]", "if self.exact else [text]"),
    ("a pipe read twice", "data/text.py", "        return _piped(path, _read_all(path, stream))", "        return File(path.name, path, None)"),
    ("a bomb is unpacked", "data/documents.py", "            if size > limit:\n                raise too_large(self.path)\n", ""),
    ("a line may be endless", "data/documents.py", "            raise too_large(f\"a line of {name}\")", "            pass"),
    ("a device is read to its end", "data/text.py", "while size <= limit and (chunk := stream.read(min(1 << 20, limit + 1 - size))):", "while chunk := stream.read(1 << 20):"),
    ("a tokenizer multiplies text", "data/tokenizer.py", "    if growth > _GROWTH:", "    if growth < 0:"),
    ("deep nesting", "storage/sealed.py", "    if is_nested_too_deeply(content):", "    if False:"),
    ("values of any shape in a result", "evaluation/result.py", "    check_shape(about, SHAPE", "    0 and check_shape(about, SHAPE"),
    ("our bug reads as cannot slide", "generation/hf.py", "module.split(\".\")[0] == \"fieldlens\"", "False"),
    ("a prompt padded on the right", "models/hf_export.py", "and not bool(mask_BT[:, -1].all())", "and False"),
    ("a plugin ends the process", "core/errors.py", "KeyboardInterrupt | GeneratorExit)", "KeyboardInterrupt | GeneratorExit | SystemExit)"),
    ("JSONL read with its braces", "data/text.py", 'file.form == "text" and _is_object(', "False and _is_object("),
    ("every layer taken for half-split", "extension/hf_probe.py", "product(offsets, (False, True), (False, True))", "product(offsets, (False,), (False,))"),
    ("the window of a layer forgotten", "extension/attention.py", "if self.mask is None else inside[:, None] & self.mask[:, :, rows, keys]", "if True else inside"),
    ("far keys at their own distance", "extension/methods/self_extend.py", "b=lambda j: j // group", "b=lambda j: j"),
    ("sinks at their old positions", "extension/methods/streaming.py", "torch.clamp(i, max=last)", "i"),
    ("a sink too few in the cache", "extension/hf_sinks.py", "states[:, :, : self.sinks]", "states[:, :, 1 : self.sinks + 1]"),
    ("dynamic scaling remembers", "extension/hf_attach.py", "        reset_dynamic_rope(changed)", "        pass"),
    ("crops without BOS", "extension/adapters.py", "if self.bos is None or not", "if True or not"),
    ("crops before it uses", "evaluation/extension_verdict.py", "if row.equivalent:", "if False:"),
    ("methods are not corrected", "evaluation/extension_verdict.py", "ps, holm(ps), strict=True", "ps, ps, strict=True"),
    ("a tie for the answer", "evaluation/retrieval.py", "tuple(sorted(values))", "tuple(values)"),
    ("a scheme asked before it projects", "schemes/validation.py", "for module in (original, copy):", "for module in (copy,):"),
    ("schemes made elsewhere refused", "schemes/discovery.py", "if not has_scheme and before == base.REGISTERED and declaring == base.DECLARING:", "if not has_scheme:"),
    ("a moved scheme", "schemes/spec.py", "return set(hashes.values()) == {source}", "return set(source_of(spec).values()) == {source}"),
    ("controls hide who lacks seeds", "paper/artifact.py", "max(expected for _, expected in lacking)", "lacking[-1][1]"),
    ("an array taken for a text", "data/text.py", "    refuse_json(path.name)", "    pass"),
    ("a cache thrown away unnoticed", "generation/hf.py", "output.past_key_values is not cache", "not output"),
    ("sliding where it will end", "generation/hf.py", '.get("past_key_values") is not cache', '.get("no such") is cache'),
    ("padding not tried", "generation/hf.py", "5 if padded else 0", "0"),
    ("states not weighed", "models/adapters/hf.py", "from _tensors(entry)", "from () if type(entry) is dict else _tensors(entry)"),
    ("a window in no cache", "models/adapters/hf.py", 'getattr(part, "sliding_window", None)) for', "None) for"),
    ("bytes as it was measured in", "receptive/check.py", "adapter.named_dtype or adapter.dtype", "adapter.dtype"),
    ("a sum that overflows is damage", "models/finite.py", " or bool(values.isfinite().all())", ""),
    ("rows with other distances", "kernels/layout.py", "k_positions - shift_B1", "k_positions - k_positions[:, :1]"),
]  # fmt: skip


APART = {"test_plugin.py", "test_harness.py", "test_house.py", "test_readme.py", "test_packaging.py"}
"""Tests that look at other things than the package in a folder."""
FOUND_BY = Path(__file__).parent / "planted.json"
"""The test that noticed each bug when it was last planted: it runs first. Copy the record of a whole run over it."""
LONGEST = 900
"""Seconds after which a run of one file of tests counts as one that does not end; 60 more for each further file."""


def nearest_first(file: str) -> list[list[str]]:
    """The tests to run, in turn: those of the changed module, those of its room, all others."""
    room = file.split("/", maxsplit=1)[0] if "/" in file else "cli"  # __main__ is the command line's first step
    stem = Path(file).stem
    tests = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in APART)
    own = [path for path in tests if path.stem == f"test_{stem}" and path.parent.name == room]
    beside = [path for path in tests if path.parent.name == room and path not in own]
    others = [path for path in tests if path not in own and path not in beside]
    return [[str(path.relative_to(ROOT)) for path in group] for group in (own, beside, others) if group]


def run(source: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run pytest with the package taken from this folder; raise TimeoutExpired if it does not end."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--no-header", *words],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, check=False,
        timeout=LONGEST + 60 * len(words),
    )  # fmt: skip


def red_test(source: Path, tests: list[str], workers: int) -> str | None:
    """The first test that fails, cannot be imported any more, or does not end; None if all pass."""
    try:
        child = run(source, "-x", *(["-n", str(workers)] if workers > 1 else []), *tests)
    except subprocess.TimeoutExpired:
        return tests[0]
    red = re.search(rb"^(?:FAILED|ERROR) (tests/[^\s[]+)", child.stdout, re.MULTILINE)
    return red[1].decode() if red else None


def found_by(source: Path, bug: tuple[str, str, str, str], workers: int) -> str | None:
    """The test that notices a bug; the file is restored."""
    description, file, right, wrong = bug
    path = source / "fieldlens" / file
    text = path.read_text()
    if text.count(right) == 0:
        sys.exit(f"{file} no longer holds: {right}")
    path.write_text(text.replace(right, wrong))
    known = json.loads(FOUND_BY.read_text()).get(description)
    try:
        groups = [[known]] * bool(known) + nearest_first(file)
        return next(filter(None, (red_test(source, tests, workers) for tests in groups)), None)
    finally:
        path.write_text(text)


def main() -> None:
    """Plant every bug that the record does not have yet; the record belongs to one state of the source."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--record", type=Path, default=Path("plant.json"), help="what was found so far; goes on from it"
    )
    options.add_argument("--workers", type=int, default=2, help="processes of pytest")
    options.add_argument("--minutes", type=float, default=60.0, help="stop after so long; the same command goes on")
    arguments = options.parse_args()
    record = json.loads(arguments.record.read_text()) if arguments.record.exists() else {}
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        if run(source, "--collect-only", "tests").returncode != 0:
            sys.exit("the tests cannot be collected without any bug: mend them first")
        for bug in BUGS:
            if bug[0] in record or time.monotonic() > end:
                continue
            record[bug[0]] = found_by(source, bug, arguments.workers)
            print(f"{'found ' if record[bug[0]] else 'MISSED'}  {bug[0]}", flush=True)
            arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    missed = [description for description, test in record.items() if not test]
    print(f"{len(record) - len(missed)} of {len(record)} planted bugs found; {len(BUGS) - len(record)} left to plant")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
