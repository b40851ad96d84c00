"""`python -m switchml`: the command line of switchml/cli/main.py."""

from switchml.cli.main import main

if __name__ == "__main__":
    main()
