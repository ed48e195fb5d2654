"""Entry point of `python -m strop`."""

from strop.cli.start import main

if __name__ == "__main__":
    main()
