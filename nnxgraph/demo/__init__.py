"""The program behind `make demo`: a character-level transformer, trained on real text.

Run it with `python -m nnxgraph.demo`; `--help` lists the options. Each module answers one question:

    _settings    what determines a run
    _data        which text, how it becomes tokens, which ones a step sees
    _baseline    how well counting does: an interpolated character trigram model
    _model       the transformer
    _train       one step of training, one of evaluation
    _sample      text written by the model
    _checkpoint  how a run is stored and taken up again
    _metrics     the CSV file of losses
    _report      what is shown
    _run         the order of it all
    _cli         the command line
"""

from ._cli import main as main

__all__ = ["main"]
