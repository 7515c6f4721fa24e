# Searches the folder at /photos on a page at http://127.0.0.1:8000; its index is kept in a volume. See docs/how-to/serve.md.
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[files]" && rm -rf /src \
    && useradd --create-home calmrl && install -d -o calmrl /cache
USER calmrl
ENV XDG_CACHE_HOME=/cache
VOLUME /cache
EXPOSE 8000
CMD ["sh", "-c", "calmrl index /photos --out /cache/photos.index && calmrl add /cache/photos.index /photos && exec calmrl serve /cache/photos.index --host 0.0.0.0"]
