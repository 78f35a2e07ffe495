-- title: Regressions
-- asks: Which cells became slower and are so still, since when, by how much, and who should look?
SELECT
  c.workload,
  c.backend,
  c.cell_id,
  c.host_id,
  c.device,
  c.at_run_id,
  c.estimate AS ratio,
  c.verdict,
  c.said AS acknowledged,
  c.look,
  l.estimate AS step_time_now_s,
  c.count AS sessions_since
FROM latest_findings AS c
JOIN (
  SELECT cell_id, host_id, IFNULL(device, '') AS place, MAX(run_id) AS run_id
  FROM latest_findings
  WHERE kind = 'session'
  GROUP BY cell_id, host_id, place
) AS newest
  ON
    newest.cell_id = c.cell_id
    AND newest.host_id = c.host_id
    AND newest.place = IFNULL(c.device, '')
    AND newest.run_id = c.run_id
LEFT JOIN latest_findings AS l
  ON
    l.run_id = c.run_id
    AND l.cell_id = c.cell_id
    AND l.host_id = c.host_id
    AND IFNULL(l.device, '') = newest.place
    AND l.kind = 'level'
WHERE
  c.kind = 'change'
  AND c.verdict IN ('slower', 'acknowledged')
  AND (@workload = '' OR c.workload = @workload)
  AND (@backend = '' OR c.backend = @backend)
  AND c.day >= CAST(@since AS DATE)
ORDER BY c.verdict DESC, c.at_run_id DESC, c.estimate DESC, c.cell_id, c.host_id
