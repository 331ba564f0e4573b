"""A custom compressor and a custom method. dpfed run masked-levels-digits --load own_compressor.py
dpfed audit three-levels --load own_compressor.py; dpfed audit masked-levels --load own_compressor.py"""

from dpfed import compress, methods, stages


@compress.register("three-levels")  # the largest entry times -1, 0 or 1, drawn so that the mean is unbiased
class ThreeLevels:
    unbiased = True

    def bits(self, dimension):
        return {"scale": compress.Floats(count=1), "levels": compress.SymbolField(alphabet=3, count=dimension)}

    def encode(self, x, seeds):
        scale = x.abs().amax(dim=1, keepdim=True)
        kept = compress.counter.coins(x.abs() / scale.clamp_min(1e-38), seeds, "three-levels")
        return {"scale": scale, "levels": 1 + kept * x.sign().long()}

    def decode(self, sent):
        return sent["scale"] * (sent["levels"] - 1.0)


@methods.register("masked-levels", scheme="three-levels", sparse="yes", preset={"method": {"keep": 0.4}})
def masked_levels(s):  # sends the coordinates drawn by the round's public seed
    return s.updates(stages.RandomSharedMask(size=s.size, kept=s.kept))
