-- title: Latest matrix
-- asks: How long does a step take, by workload and backend, and which backend is fastest?
SELECT
  f.work,
  f.work_id,
  f.workload,
  f.backend,
  f.device,
  f.league,
  f.cell_id,
  f.run_id,
  f.estimate AS step_time_s,
  f.low,
  f.high,
  f.count AS processes,
  f.verdict AS status,
  f.said AS failures,
  r.estimate AS ratio,
  r.low AS ratio_low,
  r.high AS ratio_high,
  r.against,
  v.backend AS fastest,
  v.said AS verdict,
  JSON_VALUE(v.facts, '$.caveats') AS caveats,
  c.recompiles,
  c.graph_breaks
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'figure' AND f.metric = 'times.step_time_s'
LEFT JOIN latest_findings AS r
  ON r.run_id = f.run_id AND r.cell_id = f.cell_id AND r.kind = 'ratio'
LEFT JOIN latest_findings AS v
  ON v.run_id = f.run_id AND v.work_id = f.work_id AND v.kind = 'verdict'
LEFT JOIN (
  SELECT
    run_id,
    cell_id,
    MAX(resolved_recompiles_timed) AS recompiles,
    MAX(resolved_graph_breaks_timed) AS graph_breaks
  FROM cells
  WHERE day >= CAST(@since AS DATE)
  GROUP BY run_id, cell_id
) AS c
  ON c.run_id = f.run_id AND c.cell_id = f.cell_id
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
ORDER BY f.work, f.work_id, f.backend
