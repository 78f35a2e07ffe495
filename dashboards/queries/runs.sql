-- title: Runs
-- asks: Which runs are there, and how did they end?
SELECT
  r.run_id,
  r.day,
  r.arm,
  r.fault,
  r.matrix_path,
  r.machine_cpu_model AS cpu_model,
  r.planned,
  c.attempts,
  c.ok,
  c.failed,
  c.cells
FROM runs AS r
JOIN (
  SELECT
    run_id,
    COUNT(*) AS attempts,
    COUNT(DISTINCT cell_id) AS cells,
    SUM(IF(status = 'ok', 1, 0)) AS ok,
    SUM(IF(status IN ('ok', 'unstable', 'unsupported'), 0, 1)) AS failed
  FROM cells
  WHERE
    source IS NULL
    AND (@workload = '' OR workload = @workload)
    AND (@backend = '' OR backend = @backend)
    AND day >= CAST(@since AS DATE)
  GROUP BY run_id
) AS c
  ON c.run_id = r.run_id
WHERE r.day >= CAST(@since AS DATE)
ORDER BY r.run_id DESC
LIMIT 200
