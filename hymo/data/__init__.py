"""Text to batches. `open_data(recipe)` is the door; see hymo/data/open.py."""

from hymo.data.batch import Batch
from hymo.data.dataset import Data
from hymo.data.loader import Loader
from hymo.data.open import open_data
from hymo.data.tokenizer import BytesTokenizer, Tokenizer

__all__ = ["Batch", "BytesTokenizer", "Data", "Loader", "Tokenizer", "open_data"]
