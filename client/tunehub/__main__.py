"""`python -m tunehub` is the command `tunehub`."""

from tunehub.cli import main

if __name__ == "__main__":
    main()
