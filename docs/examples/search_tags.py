"""Search for the settings of a classifier of texts, with scikit-learn and names for labels."""

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

import daskxml

FRUITS, CARS = ["apple", "pear", "plum"], ["van", "bus", "taxi"]
COLOURS = ["red", "green", "yellow"]


def corpus() -> tuple[list[str], list[list[str]]]:
    """Return texts, and the tags of each by name."""
    things = [(thing, "fruit") for thing in FRUITS] + [(thing, "vehicle") for thing in CARS]
    pairs = [(colour, thing, kind) for thing, kind in things for colour in COLOURS] * 4
    texts = [f"a {colour} {thing}, number {i}" for i, (colour, thing, _) in enumerate(pairs)]
    return texts, [[kind, colour] for colour, _, kind in pairs]


def main() -> GridSearchCV:
    """Search, and print what was found."""
    texts, tags = corpus()
    classifier = daskxml.XMLClassifier("network", epochs=40, batch_size=16, learning_rate=0.03)
    search = GridSearchCV(
        make_pipeline(TfidfVectorizer(), classifier),
        {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)], "xmlclassifier__hidden": [16, 32]},
        scoring=daskxml.make_scorer("P@2"),
        cv=KFold(3, shuffle=True, random_state=0),
    )
    search.fit(texts, tags)
    print(search.best_params_, f"P@2 {search.best_score_:.3f}")
    vectorizer, best = search.best_estimator_
    print(best.predict_labels(vectorizer.transform(["a yellow bus"]), k=2))
    return search


if __name__ == "__main__":
    main()
