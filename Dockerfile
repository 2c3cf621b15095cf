# The command on the CPU:
#   docker build --tag deepmatching .
#   docker run --rm --volume "$PWD:/data" deepmatching match a.png b.png -o ab.npz
FROM python:3.13-slim

WORKDIR /package
COPY . .
# PyTorch without CUDA, which is a tenth of the size.
RUN python -m pip install --no-cache-dir --constraint constraints.txt . \
    --extra-index-url https://download.pytorch.org/whl/cpu

# The demo compiles the kernels, for the type of processor that builds the image. Another one compiles them again.
ENV NUMBA_CACHE_DIR=/var/cache/deepmatching
RUN deepmatching demo --out /tmp/demo && rm -r /tmp/demo

WORKDIR /data
ENTRYPOINT ["deepmatching"]
CMD ["demo"]
