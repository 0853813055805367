"""Every kind of reply under test by name: the script that sends it, and the one right reading of it.

`REPLIES` is what the scripted server serves and what the matrix tests run through.
"""

from tests.support.catalogue import endings, framing, refusals, responses, shapes, unstreamed
from tests.support.catalogue.reply import REPLIES, Reply

__all__ = ["REPLIES", "Reply", "endings", "framing", "refusals", "responses", "shapes", "unstreamed"]
