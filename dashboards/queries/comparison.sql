-- title: Backends compared
-- asks: How much longer does a step take than on the backend with the lowest time, and is the difference significant?
SELECT
  r.work,
  r.work_id,
  r.workload,
  r.backend,
  r.against,
  r.league,
  r.cell_id,
  r.run_id,
  r.estimate AS ratio,
  r.low,
  r.high,
  r.count AS blocks,
  r.p_value,
  r.smallest_difference,
  r.verdict AS standing,
  v.backend AS fastest,
  v.said AS verdict,
  JSON_VALUE(v.facts, '$."same work"') AS same_work,
  JSON_VALUE(v.facts, '$.caveats') AS caveats
FROM newest_cells AS n
JOIN latest_findings AS r
  ON r.run_id = n.run_id AND r.cell_id = n.cell_id AND r.kind = 'ratio'
LEFT JOIN latest_findings AS v
  ON v.run_id = r.run_id AND v.work_id = r.work_id AND v.kind = 'verdict'
WHERE
  (@workload = '' OR r.workload = @workload)
  AND (@backend = '' OR r.backend = @backend)
  AND r.day >= CAST(@since AS DATE)
ORDER BY r.work, r.work_id, r.backend
