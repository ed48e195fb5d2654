"""`python -m strop`."""

from strop.cli.main import main

if __name__ == "__main__":
    main()
