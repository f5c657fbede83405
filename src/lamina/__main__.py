"""``python -m lamina``: the ``lamina`` command, for where scripts of the environment are not on the path."""

from lamina.cli.app import main

if __name__ == "__main__":
    main()
