"""AgentFormer."""
