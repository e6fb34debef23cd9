# Stand-ins for the images that docker/ builds on and starts, from Debian's packages, for a machine that reaches no image registry.
# `debian` comes from debootstrap, with the machine's certificates. Each behaves as the real one where docker/ relies on it.
FROM lockgate-stand-in/debian AS base
ENV SSL_CERT_FILE=/etc/ssl/machine.crt PIP_CERT=/etc/ssl/machine.crt PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update && apt-get install --yes --no-install-recommends gosu wget

FROM base AS python
RUN apt-get install --yes --no-install-recommends python3-minimal python3-venv \
    && python3 -m venv /usr/local \
    && /usr/local/bin/pip install --no-cache-dir pip==24.3.1 \
    && apt-get clean

FROM base AS airflow
RUN apt-get install --yes --no-install-recommends python3 python3-venv dumb-init curl \
    && useradd --uid 50000 --gid 0 --create-home airflow \
    && mkdir --mode 0775 /opt/airflow && chown airflow:0 /opt/airflow \
    && printf '#!/bin/bash\ncase $1 in bash|python|airflow) exec "$@" ;; *) exec airflow "$@" ;; esac\n' > /entrypoint && chmod +x /entrypoint \
    && apt-get clean
USER airflow
RUN python3 -m venv /home/airflow/.local && /home/airflow/.local/bin/pip install --no-cache-dir pip==24.3.1
ENV PATH=/home/airflow/.local/bin:$PATH AIRFLOW_HOME=/opt/airflow
WORKDIR /opt/airflow
ENTRYPOINT ["/usr/bin/dumb-init", "--", "/entrypoint"]

FROM base AS redis
RUN apt-get install --yes --no-install-recommends redis-server \
    && printf '#!/bin/sh\nchown redis /data && exec gosu redis "$@"\n' > /entrypoint && chmod +x /entrypoint
WORKDIR /data
ENTRYPOINT ["/entrypoint"]

FROM base AS postgres
RUN apt-get install --yes --no-install-recommends postgresql \
    && ln --symbolic /usr/lib/postgresql/*/bin /usr/local/pg && mkdir --parents /var/run/postgresql /var/lib/postgresql/data \
    && chown -R postgres /var/run/postgresql /var/lib/postgresql
COPY postgres-entrypoint /entrypoint
ENV PATH=/usr/local/pg:$PATH PGDATA=/var/lib/postgresql/data
STOPSIGNAL SIGINT
ENTRYPOINT ["/entrypoint"]
CMD ["postgres"]

FROM base AS prometheus
RUN apt-get install --yes --no-install-recommends prometheus && ln --symbolic /usr/bin/prometheus /bin/prometheus; mkdir --parents /prometheus && chown 65534 /prometheus
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]

FROM base AS s3
COPY versitygw /usr/local/bin/versitygw
ENTRYPOINT ["/usr/local/bin/versitygw"]
