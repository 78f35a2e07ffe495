"""Grafana: one dashboard over BigQuery, built by code from the same queries; the JSON is what people import."""
