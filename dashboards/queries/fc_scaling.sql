-- title: Scaling of the FC modes
-- asks: What do more workers gain, and what share of a step goes into communication?
SELECT
  f.backend,
  JSON_VALUE(f.facts, '$.mode') AS mode,
  JSON_VALUE(f.facts, '$."divided work"') AS divided_work,
  CAST(JSON_VALUE(f.facts, '$.workers') AS INT64) AS workers,
  f.work,
  f.work_id,
  f.workload,
  JSON_VALUE(f.facts, '$."divided work id"') AS divided_work_id,
  f.cell_id,
  f.run_id,
  MAX(IF(f.metric = 'samples_per_s', f.estimate, NULL)) AS samples_per_s,
  MAX(IF(f.metric = 'efficiency', f.estimate, NULL)) AS efficiency,
  MAX(IF(f.metric = 'efficiency', f.low, NULL)) AS low,
  MAX(IF(f.metric = 'efficiency', f.high, NULL)) AS high,
  MAX(IF(f.metric = 'communication_share', f.estimate, NULL)) AS communication_share
FROM newest_cells AS n
JOIN latest_findings AS f
  ON f.run_id = n.run_id AND f.cell_id = n.cell_id AND f.kind = 'workers'
WHERE
  (@workload = '' OR f.workload = @workload)
  AND (@backend = '' OR f.backend = @backend)
  AND f.day >= CAST(@since AS DATE)
GROUP BY
  f.backend,
  JSON_VALUE(f.facts, '$.mode'),
  JSON_VALUE(f.facts, '$."divided work"'),
  CAST(JSON_VALUE(f.facts, '$.workers') AS INT64),
  f.work,
  f.work_id,
  f.workload,
  JSON_VALUE(f.facts, '$."divided work id"'),
  f.cell_id,
  f.run_id
ORDER BY mode, divided_work, f.backend, workers, f.cell_id
