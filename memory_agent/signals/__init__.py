"""What an event is to a memory: which ones are kept (`table`), their readable text (`payloads`), how they say something
ended (`verdicts`), and the record that comes of it (`reader`)."""
