"""The reference engine: plain Python, written to be read beside the specification; `interpreter.Interpreter` is the
engine, the other modules are the blocks of a program that it runs."""
