# docker build -t inference-server .                          for the CPU
# docker build -t inference-server --build-arg DEVICE=cuda .  for CUDA: adds the CUDA libraries; needs an NVIDIA driver on the host
# Add --build-arg COMPILE=true to compile the bundles into the image: for machines with the same kind of processor as this.
ARG PYTHON_VERSION=3.12

# Not the slim one: a C compiler is in it.
FROM python:${PYTHON_VERSION} AS build
ARG DEVICE=cpu
WORKDIR /src
COPY pyproject.toml requirements.lock README.md ./
COPY app app
COPY bundles/requirements.txt bundles/requirements.txt
# The extra `cluster` is for several devices in one container: 14 MB.
RUN python -m venv /opt/venv \
    && target="$([ "$DEVICE" = cuda ] && echo '.[cluster,cuda]' || echo '.[cluster]')" \
    && /opt/venv/bin/pip install --no-cache-dir --constraint requirements.lock "$target" \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --ignore-requires-python --requirement bundles/requirements.txt
# The same again with the code of every request compiled. What that needs, the extra `build` without the server, reads the
# types of what was just installed, and stays behind.
RUN /opt/venv/bin/pip install --no-cache-dir --constraint requirements.lock --target /opt/tools 'mypy[mypyc]' setuptools types-PyYAML \
    && PYTHONPATH=/opt/tools /opt/venv/bin/python -m app.wheel /opt/wheel \
    && /opt/venv/bin/pip install --no-cache-dir --no-deps --force-reinstall /opt/wheel/*.whl

FROM python:${PYTHON_VERSION}-slim
ARG COMPILE=false
RUN useradd --system --uid 10001 --create-home server \
    && mkdir -p /var/cache/inference-server /srv/bundles \
    && chown server /var/cache/inference-server \
    # Operators for text want this locale by name; the C library's own knows the same letters.
    && ln -s C.utf8 /usr/lib/locale/en_US.utf8
COPY --from=build /opt/venv /opt/venv
COPY bundles /srv/bundles
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    INFERENCE_SERVER_ENDPOINTS_HOST=0.0.0.0 \
    INFERENCE_SERVER_MODEL_DIRS=/srv/bundles \
    INFERENCE_SERVER_CACHE_DIR=/var/cache/inference-server
USER server
WORKDIR /srv
# Before the volume is declared: a new volume begins with what lies here then.
RUN [ "$COMPILE" = false ] || inference-server compile
VOLUME /var/cache/inference-server
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('INFERENCE_SERVER_ENDPOINTS_PORT', '8000') + '/v2/health/live', timeout=2)"]
ENTRYPOINT ["inference-server"]
CMD ["serve"]
