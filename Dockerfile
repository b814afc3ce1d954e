# docs/containers.md says how to build and to run it.
ARG BASE=python:3.11-slim-trixie
FROM ${BASE}

# Builds for CPUs. Those of PyPI bring CUDA with them: they need the host's driver, and no other base.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /workspace

# What is large and seldom changes comes first. The lock's hashes are those of PyPI's builds alone.
COPY requirements.lock ./
RUN grep -oE '^[^ ]+==[^ ]+' requirements.lock > constraints.txt \
    && python -m pip install --no-deps --index-url "${TORCH_INDEX}" \
        --constraint constraints.txt torch torchvision \
    && python -m pip install --constraint constraints.txt torch torchvision

COPY pyproject.toml ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project'] \
        ['dependencies'], sep='\n')" > requirements.txt \
    && python -m pip install --constraint constraints.txt --requirement requirements.txt

COPY configs configs
COPY project/ project/
RUN python -m compileall -q project/ \
    && useradd --uid 1000 --no-create-home user \
    && mkdir data runs \
    && chown user data runs

# A home that every user can write to, for `docker run --user`.
ENV HOME=/tmp
USER 1000
# The form without a shell: SIGTERM from `docker stop` has to reach Python, which saves and ends.
ENTRYPOINT ["python", "-m", "project"]
CMD ["--help"]
