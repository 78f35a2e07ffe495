-- The flat table of the first Keras benchmarks, its names kept: one row a measured attempt. `totaltime` is the seconds
-- of the kept epochs of ceil(samples / batch_size) steps where that was measured, otherwise of the kept epochs.
SELECT
  c.row_hash AS test_id,
  c.workload AS test_name,
  c.phase AS test_type,
  c.started_at AS recorded_time,
  STRUCT(
    IFNULL(m.seed_total_time_s, m.epochs_total_time_s) AS totaltime,
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
    'GiB' AS memory_units
  ) AS cpu_info,
  STRUCT(IFNULL(c.machine_container, 'host') AS type, c.machine_cpu_model AS machine_type) AS platform_info,
  JSON_VALUE(c.versions, '$.keras') AS keras_version,
  STRUCT(
    CAST(IF(c.device_platform = 'gpu', c.device_count, 0) AS FLOAT64) AS count,
    IF(c.device_platform = 'gpu', IFNULL(c.device_model, c.device_name), NULL) AS platform
  ) AS gpu_info
FROM cells AS c
JOIN (
  SELECT
    run_id,
    cell_id,
    repeat,
    attempt,
    MAX(IF(metric = 'times.seed_total_time_s', value, NULL)) AS seed_total_time_s,
    SUM(IF(metric = 'times.epoch_times_s', value, NULL)) AS epochs_total_time_s
  FROM measurements
  WHERE metric IN ('times.seed_total_time_s', 'times.epoch_times_s')
  GROUP BY run_id, cell_id, repeat, attempt
) AS m
  ON m.run_id = c.run_id AND m.cell_id = c.cell_id AND m.repeat = c.repeat AND m.attempt = c.attempt
