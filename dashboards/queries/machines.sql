-- title: What ran where
-- asks: Which machines and versions measured what, and when last?
SELECT
  c.machine_host_id AS host_id,
  c.machine_cpu_model AS cpu_model,
  c.machine_logical_cpus AS logical_cpus,
  c.machine_machine_type AS machine_type,
  IFNULL(c.device_model, c.device_platform) AS hardware,
  c.backend,
  JSON_VALUE(c.versions, '$.keras') AS keras_version,
  CASE c.backend
    WHEN 'tensorflow' THEN JSON_VALUE(c.versions, '$.tensorflow')
    WHEN 'jax' THEN JSON_VALUE(c.versions, '$.jax')
    WHEN 'torch' THEN JSON_VALUE(c.versions, '$.torch')
    WHEN 'openvino' THEN JSON_VALUE(c.versions, '$.openvino')
  END AS backend_version,
  COUNT(DISTINCT c.run_id) AS runs,
  COUNT(DISTINCT c.cell_id) AS cells,
  COUNT(*) AS attempts,
  MAX(c.run_id) AS last_run_id
FROM cells AS c
WHERE
  c.source IS NULL
  AND (@workload = '' OR c.workload = @workload)
  AND (@backend = '' OR c.backend = @backend)
  AND c.day >= CAST(@since AS DATE)
GROUP BY host_id, cpu_model, logical_cpus, machine_type, hardware, c.backend, keras_version, backend_version
ORDER BY last_run_id DESC, host_id, c.backend, keras_version, backend_version, hardware, machine_type
