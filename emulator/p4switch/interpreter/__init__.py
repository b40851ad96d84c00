"""The reference engine: plain Python, written for comparison with the specification; `interpreter.Interpreter` is the
engine, the other modules implement the blocks of a program."""
