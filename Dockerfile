# spaninfer on CPUs, for `docker run --read-only`: kernels are compiled while the image is built, and
# nobody writes anything afterwards. docs/guides/containers.md says how to build and run it.

FROM python:3.12-slim AS wheels
COPY . /src
WORKDIR /src
RUN python -m pip wheel --no-cache-dir --no-deps --constraint constraints.txt --wheel-dir /wheels \
    ./packages/spaninfer ./packages/engine ./packages/serving ./packages/op-reference \
    ./packages/demo ./kernels-cpu ./multimodal

FROM python:3.12-slim
COPY constraints.txt /
RUN --mount=from=wheels,source=/wheels,target=/wheels \
    python -m pip install --no-cache-dir --constraint constraints.txt /wheels/*.whl

# Root's, and readable by all. Its kernels are for this machine's CPU and what the bundled model needs.
ENV NUMBA_CACHE_DIR=/var/cache/spaninfer
RUN spaninfer generate demo "Once upon a time" --max-tokens 8

# nobody: no home, no shell, nothing that it may write
USER 65534:65534
EXPOSE 8000
ENTRYPOINT ["spaninfer"]
CMD ["serve", "--host", "0.0.0.0"]
