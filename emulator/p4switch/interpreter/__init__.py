"""The reference engine: plain Python, written to be read beside the specification; `path.Interpreter` is the engine."""
