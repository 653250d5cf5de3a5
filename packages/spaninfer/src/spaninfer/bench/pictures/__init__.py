"""Pictures and clips that are drawn from numbers, with questions whose answers are known.

The bundled model is trained on them, and `spaninfer bench accuracy` asks about others: drawn with
other seeds, shades, fonts and sizes.
"""
