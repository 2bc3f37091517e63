#pragma once

namespace rankwise::app {

/// Keeps the threads on which grpc++ 1.51 calls back its clients until the process ends. They stop with the last
/// channel; when a callback drops that, a thread waits for itself and the process crashes. Waits once, until a call to
/// a port where nobody listens has failed; later calls return at once.
void keep_grpc_callback_threads();

} // namespace rankwise::app
