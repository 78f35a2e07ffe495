-- The flat table of the first Keras benchmarks with its column names, then columns that distinguish variants: one row per
-- measured repeat. `test_name`, `test_type` and `keras_backend.type` identify a cell: `test_type` lists the phase, the FC
-- mode and its workers, the parameters, the batch size, and every setting that differs from its default. Superseded
-- attempts, attempts with a status other than ok or unstable, and runs with an injected fault are excluded: they are in
-- `cells`. Imported rows have a `source`. `metrics.totaltime` is the time of the measured epochs in seconds, without the
-- discarded ones: of epochs of ceil(samples / batch_size) steps if these were measured, otherwise of the epochs that were;
-- `steps_per_epoch` is their number of steps. For an external command it is the time of the command.
WITH latest AS (
  -- A repeat that was measured again with another end than ok or unstable keeps its earlier figure.
  SELECT run_id, cell_id, repeat, MAX(attempt) AS attempt
  FROM cells
  WHERE status IN ('ok', 'unstable') AND day >= CAST(@since AS DATE)
  GROUP BY run_id, cell_id, repeat
),
figures AS (
  SELECT
    run_id,
    cell_id,
    repeat,
    attempt,
    -- Records of schema version 3 and older call it seed_total_time_s.
    MAX(IF(metric IN ('times.suite_total_time_s', 'times.seed_total_time_s'), value, NULL)) AS suite_total_time_s,
    SUM(IF(metric = 'times.epoch_times_s', value, NULL)) AS epochs_total_time_s,
    MAX(IF(metric = 'task.metrics.uptime_in_seconds', value, NULL)) AS command_time_s,
    MAX(IF(metric = 'times.step_time_s', value, NULL)) AS step_time_s,
    MAX(IF(metric = 'times.samples_per_s', value, NULL)) AS samples_per_s
  FROM measurements
  WHERE
    metric IN (
      'times.suite_total_time_s',
      'times.seed_total_time_s',
      'times.epoch_times_s',
      'task.metrics.uptime_in_seconds',
      'times.step_time_s',
      'times.samples_per_s'
    )
    AND day >= CAST(@since AS DATE)
  GROUP BY run_id, cell_id, repeat, attempt
),
described AS (
  SELECT
    c.*,
    IFNULL(c.phase, '') = 'task' AS is_command,
    IF(c.params IS NULL, '{}', TO_JSON_STRING(c.params)) AS params_text,
    IF(c.workload = 'fc', JSON_VALUE(c.params, '$.mode'), NULL) AS fc_mode,
    IF(c.workload = 'fc', SAFE_CAST(JSON_VALUE(c.params, '$.workers') AS INT64), NULL) AS fc_workers
  FROM cells AS c
  WHERE c.day >= CAST(@since AS DATE)
),
listed AS (
  SELECT
    d.*,
    -- As ", name=value"; a string keeps its quotes, so that one with ", b=2" does not look like another parameter.
    REGEXP_REPLACE(
      REGEXP_REPLACE(d.params_text, r'[{,]"([A-Za-z_][A-Za-z0-9_]*)":', r', \1='),
      r'^\{\}$|\}$',
      ''
    ) AS params_list
  FROM described AS d
)
SELECT
  c.row_hash AS test_id,
  c.workload AS test_name,
  SUBSTR(
    CONCAT(
      IFNULL(CONCAT(', ', c.phase), ''),
      IFNULL(CONCAT(', ', c.fc_mode), ''),
      IFNULL(CONCAT(', workers=', CAST(c.fc_workers AS STRING)), ''),
      -- FC cells record every parameter; those with the default value are omitted.
      IF(
        c.workload = 'fc',
        REGEXP_REPLACE(
          REGEXP_REPLACE(
            c.params_list,
            r', (level=10|weight_size=1024|micro_batches=4|model_workers=0|phy_blocks=1|shared_ratio=0\.0009765625)\b',
            ''
          ),
          r', (mode="[a-z_]*"|workers=[0-9]+|network="local"|overlap="on"|partition="program"|reduce="sum")',
          ''
        ),
        c.params_list
      ),
      IF(c.is_command OR c.batch_size IS NULL, '', CONCAT(', batch_size=', CAST(c.batch_size AS STRING))),
      IF(
        NOT c.is_command AND c.samples != IF(c.workload = 'fc', 128, 1000),
        CONCAT(', samples=', CAST(c.samples AS STRING)),
        ''
      ),
      IF(c.eager, ', eager', ''),
      IF(c.jit != 'auto', CONCAT(', jit=', c.jit), ''),
      IF(c.precision NOT IN ('float32', 'own'), CONCAT(', precision=', c.precision), ''),
      IF(c.league NOT IN ('as_shipped', 'tasks'), CONCAT(', league=', c.league), ''),
      IF(c.device != 'cpu', CONCAT(', device=', c.device), ''),
      IF(c.feed NOT IN ('device_resident', 'own'), CONCAT(', feed=', c.feed), ''),
      IF(c.data NOT IN ('synthetic', 'own'), CONCAT(', data=', c.data), ''),
      IF(NOT c.is_command AND c.epochs != 4, CONCAT(', epochs=', CAST(c.epochs AS STRING)), ''),
      IF(NOT c.is_command AND c.discard != 1, CONCAT(', discard=', CAST(c.discard AS STRING)), ''),
      IF(NOT c.is_command AND c.steps_per_epoch != 'auto', CONCAT(', steps_per_epoch=', c.steps_per_epoch), ''),
      IF(c.steps_per_execution != 1, CONCAT(', steps_per_execution=', CAST(c.steps_per_execution AS STRING)), ''),
      IF(c.seed != 0, CONCAT(', seed=', CAST(c.seed AS STRING)), ''),
      IF(c.threads != 'all', CONCAT(', threads=', c.threads), ''),
      IF(c.cpus != 'all', CONCAT(', cpus=', c.cpus), ''),
      IF(c.compile_cache != 'cold', CONCAT(', compile_cache=', c.compile_cache), ''),
      IF(c.clocks != 'free', CONCAT(', clocks=', c.clocks), ''),
      IF(c.autotune != 'fresh', CONCAT(', autotune=', c.autotune), ''),
      IF(c.freed_memory != 'returned', CONCAT(', freed_memory=', c.freed_memory), ''),
      IF(c.set_by_matrix != '', CONCAT(', set_by_matrix=', c.set_by_matrix), ''),
      IF(c.page_cache != 'warm', CONCAT(', page_cache=', c.page_cache), ''),
      IF(c.input_timers, ', input_timers', ''),
      IF(c.nodes != 1, CONCAT(', nodes=', CAST(c.nodes AS STRING)), ''),
      IF(c.devices != 1, CONCAT(', devices=', CAST(c.devices AS STRING)), ''),
      IF(c.distribution != 'data', CONCAT(', distribution=', c.distribution), ''),
      IF(
        c.gradient_accumulation_steps != 1,
        CONCAT(', gradient_accumulation_steps=', CAST(c.gradient_accumulation_steps AS STRING)),
        ''
      ),
      IF(c.remat != 'none', CONCAT(', remat=', c.remat), ''),
      IF(c.implementation != 'keras', CONCAT(', implementation=', c.implementation), ''),
      IF(c.env != '', CONCAT(', env=', c.env), ''),
      IF(c.call != 'predict_on_batch', CONCAT(', call=', c.call), ''),
      IF(c.outputs != 'host', CONCAT(', outputs=', c.outputs), ''),
      IF(c.torch_compile != '', CONCAT(', torch_compile=', c.torch_compile), ''),
      IF(c.xla_flags != '', CONCAT(', xla_flags=', c.xla_flags), ''),
      IF(c.matmul_precision != 'default', CONCAT(', matmul_precision=', c.matmul_precision), ''),
      IFNULL(CONCAT(', source=', c.source), '')
    ),
    3
  ) AS test_type,
  c.started_at AS recorded_time,
  STRUCT(
    COALESCE(m.suite_total_time_s, m.epochs_total_time_s, m.command_time_s) AS totaltime,
    c.epochs - c.discard AS epochs,
    c.batch_size AS batch_size,
    c.data AS sampletype
  ) AS metrics,
  STRUCT(
    c.backend AS type,
    CASE c.backend
      WHEN 'tensorflow' THEN JSON_VALUE(c.versions, '$.tensorflow')
      WHEN 'jax' THEN JSON_VALUE(c.versions, '$.jax')
      ELSE JSON_VALUE(c.versions, '$.torch')
    END AS version
  ) AS keras_backend,
  STRUCT(
    CAST(c.machine_logical_cpus AS FLOAT64) AS numcores,
    c.machine_memory_bytes / 1073741824 AS memory,
    'GiB' AS memory_units,
    c.machine_cpu_model AS platform
  ) AS cpu_info,
  STRUCT(IFNULL(c.machine_container, 'host') AS type, c.machine_machine_type AS machine_type) AS platform_info,
  JSON_VALUE(c.versions, '$.keras') AS keras_version,
  STRUCT(
    CAST(IF(c.device_platform = 'gpu', c.device_count, 0) AS FLOAT64) AS count,
    IF(c.device_platform = 'gpu', IFNULL(c.device_model, c.device_name), NULL) AS platform
  ) AS gpu_info,
  c.run_id,
  c.cell_id,
  c.repeat,
  c.status,
  NULLIF(r.arm, '') AS arm,
  c.source,
  c.phase,
  c.fc_mode,
  c.fc_workers,
  c.params_text AS params,
  c.samples,
  c.eager,
  c.jit,
  c.precision,
  c.league,
  c.device,
  c.feed,
  STRUCT(
    c.epochs AS epochs,
    c.discard AS discard,
    c.steps_per_epoch AS steps_per_epoch,
    c.steps_per_execution AS steps_per_execution,
    c.seed AS seed,
    c.threads AS threads,
    c.cpus AS cpus,
    c.compile_cache AS compile_cache,
    c.clocks AS clocks,
    c.autotune AS autotune,
    c.freed_memory AS freed_memory,
    c.set_by_matrix AS set_by_matrix,
    c.page_cache AS page_cache,
    c.input_timers AS input_timers,
    c.nodes AS nodes,
    c.devices AS devices,
    c.distribution AS distribution,
    c.gradient_accumulation_steps AS gradient_accumulation_steps,
    c.remat AS remat,
    c.implementation AS implementation,
    c.env AS env,
    c.call AS call,
    c.outputs AS outputs,
    c.torch_compile AS torch_compile,
    c.xla_flags AS xla_flags,
    c.matmul_precision AS matmul_precision
  ) AS settings,
  IF(m.suite_total_time_s IS NULL, c.resolved_steps_per_epoch, c.resolved_seed_steps_per_epoch) AS steps_per_epoch,
  m.step_time_s,
  m.samples_per_s
FROM listed AS c
JOIN runs AS r
  ON r.run_id = c.run_id
JOIN latest AS l
  ON l.run_id = c.run_id AND l.cell_id = c.cell_id AND l.repeat = c.repeat AND l.attempt = c.attempt
JOIN figures AS m
  ON m.run_id = c.run_id AND m.cell_id = c.cell_id AND m.repeat = c.repeat AND m.attempt = c.attempt
WHERE
  r.fault IS NULL
  AND r.day >= CAST(@since AS DATE)
  AND c.status IN ('ok', 'unstable')
  AND COALESCE(m.suite_total_time_s, m.epochs_total_time_s, m.command_time_s) IS NOT NULL
