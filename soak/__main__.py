"""``python -m soak`` is ``soak``."""

from soak.cli import main

if __name__ == "__main__":
    main()
