"""Context extension: methods that run a trained model past its training length, and how they are attached to it.

A method is one file in `methods`: a subclass of `ExtensionMethod` with a `name`. The command line, the tests and the
documentation iterate over `registry()`.

Reading order: base, methods, discovery, attention, rope, hf_probe, hf_attach, hf_sinks, decoder_attach, attach, load.
"""
