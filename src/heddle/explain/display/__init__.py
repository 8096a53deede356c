"""Display of explanations: as data and JSON, on the terminal, and as one HTML file."""

from heddle.explain.display.explanation import Explanation, short
