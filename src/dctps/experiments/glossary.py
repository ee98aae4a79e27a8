"""What the parts of a method's name mean, for readers of a page who have not read the paper."""

from collections.abc import Iterable

LOST = (
    "The published code rounds down in each layer and loses what full layers cannot take, so that the network may have "
    "fewer weights than were asked for."
)
KEPT = "The network has exactly as many weights as were asked for."
SHARED = "What a layer cannot take is shared among the others in the same proportions."
GLOSSARY = {
    "dense": "The network with all its weights.",
    "DCTpS": (
        "W = alpha D + S. D is the discrete cosine transform, as published, and S is sparse. Brackets name the rule "
        "that says how many weights each layer has in S; without brackets it is EPL, as published."
    ),
    "DpS": "W = alpha D + S like DCTpS, with another transform or another order, signs or rows of it as D.",
    "Random": "W = S without an offset; the weights that train lie at random places.",
    "Random (global)": "W = S without an offset; places are drawn at random from the network as a whole.",
    "EPL": (
        "Equal per layer, as published: every layer has the same number of weights, and the last one also has what "
        f"smaller layers cannot take. {LOST}"
    ),
    "exact EPL": f"Equal per layer, the default of this library. {SHARED} {KEPT} This is where it differs from EPL.",
    "EPF": f"Equal per filter, as published: the weights of a layer grow with its number of filters. {LOST}",
    "exact EPF": f"Equal per filter on average over a layer. {SHARED} {KEPT}",
    "strict EPF": f"Equal per filter, for every single filter of a layer. {KEPT}",
    "ERK": f"Erdos-Renyi kernel, as published: the weights of a layer grow with the sum of its shape. {LOST}",
    "exact ERK": f"Erdos-Renyi kernel. {SHARED} {KEPT}",
    "ER": f"Erdos-Renyi: the weights of a layer grow with its inputs plus its outputs. {SHARED} {KEPT}",
    "square root": f"The weights of a layer grow with the square root of its size. {KEPT}",
    "uniform": "Every layer has the same density.",
    "rounded as RigL": "As published, with the rounding of the published runs of RigL.",
    "FORCE": "Pruned before training by Iter-SNIP, which is what the published code runs under this name.",
    "FORCE (de Jorge)": "Pruned before training, step by step, with weights that may come back.",
    "SynFlow": "Pruned before training by scores that need no data, in many steps.",
    "SNIP": "Pruned before training by |weight x gradient| of one batch or a few.",
    "Iter-SNIP": "Pruned before training by SNIP in several steps.",
    "GraSP": "Pruned before training so that the gradient loses as little of its norm as possible.",
    "Magnitude": "Pruned before training by the magnitude of the initial weights.",
    "IMP": "Iterative magnitude pruning (lottery tickets): trained, pruned, rewound and trained again, in rounds.",
    "RigL": (
        "Rewired while training: small weights give way to places with a large gradient. Alone and without brackets, "
        "its layers have the numbers of weights of ERK, as published."
    ),
    "SET": "Rewired while training: small weights give way to random places.",
    "DSR": "Rewired while training: small weights give way to random places, also in other layers.",
    "Hyperplane Projection": "All weights move in a random subspace; the density gives its dimension.",
    "alpha preserve": "The initial alpha keeps the variance of what passes through a layer.",
    "alpha exact": "The initial alpha gives filters the norm that the network states for them.",
    "alpha leverage": "The initial alpha is such that S can turn the filters of D in the training.",
    "alpha fixed": "Alpha does not train.",
    "S frozen": "The values of S stay zero in every layer but the last: a control.",
    "BatchNorm frozen": "The scales and shifts of BatchNorm do not train: a control.",
    "BatchNorm": "Only this share of the channels of BatchNorm has a scale and a shift that train.",
}


def meanings(names: Iterable[str]) -> dict[str, str]:
    """Return the terms that occur in names of methods, with their meanings, in the order of GLOSSARY.

    >>> list(meanings(["DCTpS (exact EPL)", "RigL"]))
    ['DCTpS', 'exact EPL', 'RigL']
    """
    found = {term for name in names for term in _terms(name)}
    return {term: meaning for term, meaning in GLOSSARY.items() if term in found}


def _terms(name: str) -> set[str]:
    """Return the terms in a name; a term is not found again inside a longer one, as EPL inside exact EPL."""
    found, rest = set(), name
    for term in sorted(GLOSSARY, key=len, reverse=True):
        if term in rest:
            found.add(term)
            rest = rest.replace(term, "\n")
    return found
