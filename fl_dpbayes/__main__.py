"""`python -m fl_dpbayes`: the command line, where its own name is not on the path."""

from fl_dpbayes.cli import main

if __name__ == "__main__":
    main()
