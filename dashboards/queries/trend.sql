-- title: Trend
-- asks: How did one cell change over time, with which versions, and when?
SELECT
  s.run_id,
  s.day,
  s.work,
  s.workload,
  s.backend,
  s.cell_id,
  s.host_id,
  s.device,
  s.estimate AS step_time_s,
  s.low,
  s.high,
  s.count AS processes,
  s.verdict AS status,
  JSON_VALUE(s.facts, '$.keras') AS keras_version,
  CASE s.backend
    WHEN 'tensorflow' THEN JSON_VALUE(s.facts, '$.tensorflow')
    WHEN 'jax' THEN JSON_VALUE(s.facts, '$.jax')
    WHEN 'torch' THEN JSON_VALUE(s.facts, '$.torch')
    WHEN 'openvino' THEN JSON_VALUE(s.facts, '$.openvino')
  END AS backend_version,
  c.estimate AS change_ratio,
  c.verdict AS change_verdict,
  c.said AS change_note,
  c.look AS change_look
FROM latest_findings AS s
JOIN (
  SELECT cell_id, host_id, IFNULL(device, '') AS place, MAX(run_id) AS run_id
  FROM latest_findings
  WHERE kind = 'session'
  GROUP BY cell_id, host_id, place
) AS newest
  ON
    newest.cell_id = s.cell_id
    AND newest.host_id = s.host_id
    AND newest.place = IFNULL(s.device, '')
LEFT JOIN latest_findings AS c
  ON
    c.kind = 'change'
    AND c.run_id = newest.run_id
    AND c.cell_id = s.cell_id
    AND c.host_id = s.host_id
    AND IFNULL(c.device, '') = newest.place
    AND c.at_run_id = s.run_id
WHERE
  s.kind = 'session'
  AND (@cell = '' OR s.cell_id = @cell)
  AND (@workload = '' OR s.workload = @workload)
  AND (@backend = '' OR s.backend = @backend)
  AND s.day >= CAST(@since AS DATE)
ORDER BY s.workload, s.backend, s.cell_id, s.host_id, s.device, s.run_id
