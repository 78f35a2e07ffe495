-- title: Failures by status
-- asks: Which attempts did not end ok, how, and when last?
SELECT
  c.status,
  c.workload,
  c.backend,
  COUNT(*) AS attempts,
  COUNT(DISTINCT c.run_id) AS runs,
  MAX(c.run_id) AS last_run_id,
  MIN(c.reason) AS example
FROM cells AS c
WHERE
  c.source IS NULL
  AND c.status != 'ok'
  AND (@workload = '' OR c.workload = @workload)
  AND (@backend = '' OR c.backend = @backend)
  AND c.day >= CAST(@since AS DATE)
GROUP BY c.status, c.workload, c.backend
ORDER BY attempts DESC, c.status, c.workload, c.backend
