# Smalti for the CPU in a container, see docs/install/containers.md. No compiler, no driver of a GPU.
#
#     docker build -t smalti .
#     docker run --rm -v "$PWD:/pictures" smalti generate "a red apple" -o apple.png

FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN python -m venv --without-pip /opt/smalti \
    && python -m pip --python /opt/smalti/bin/python install --no-cache-dir .

FROM python:3.13-slim
COPY --from=build /opt/smalti /opt/smalti
RUN useradd --create-home --uid 1000 smalti \
    && mkdir /models /pictures /cache \
    && chmod 1777 /pictures /cache
ENV PATH="/opt/smalti/bin:$PATH" SMALTI_CACHE=/cache
USER 1000
WORKDIR /pictures
VOLUME ["/pictures", "/cache"]
EXPOSE 7860
ENTRYPOINT ["smalti"]
CMD ["serve", "--host", "0.0.0.0", "--models", "/models", "--output", "/pictures"]
