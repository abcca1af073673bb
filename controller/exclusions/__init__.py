"""Why a worker gets no task: broken or slow machines, lack of memory."""
