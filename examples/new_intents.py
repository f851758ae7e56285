"""Add intents to a running text classifier, without the old texts and without retraining.

    python examples/new_intents.py                                                # no download: hashed word pieces
    python examples/new_intents.py sentence-transformers:all-MiniLM-L6-v2         # far better; extra `text`
"""

from __future__ import annotations

import sys

from sklearn.feature_extraction.text import HashingVectorizer

from holdfast import IncrementalClassifier

MONDAY = {
    "weather": ["will it rain today", "is it sunny outside", "how cold will it be", "do I need an umbrella"],
    "balance": ["what is my balance", "how much money do I have", "show my account balance", "balance of my account"],
}
FRIDAY = {"order": ["order a pizza", "I want to order food", "get me a burger", "order some noodles"]}


def hashed(texts: list[str]):
    """Embed texts by their letter n-grams: an embedder is any function from samples to vectors."""
    return HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=256).transform(texts).toarray()


def main() -> None:
    model = IncrementalClassifier(slots=500, embedder=sys.argv[1] if len(sys.argv) > 1 else hashed)
    for day in (MONDAY, FRIDAY):
        texts = [text for some in day.values() for text in some]
        model.partial_fit(texts, [intent for intent, some in day.items() for _ in some])
        print(f"knows {', '.join(model.classes_)}; {model.stability_.answer}")
    for text in ("is it raining", "my balance please", "order a pizza for me"):
        print(f"{text!r}: {model.predict([text])[0]}")


if __name__ == "__main__":
    main()
