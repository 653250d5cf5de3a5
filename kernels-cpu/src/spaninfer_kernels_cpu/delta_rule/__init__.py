"""The gated delta rule of linear attention, the convolution and the gates in front of it."""
