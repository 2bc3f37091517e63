#pragma once

#include "core/base/time.hpp"
#include "core/request/output_batch.hpp"
#include "io/zmq/rank_record.hpp"
#include "messages/dp_rank.hpp"

#include <functional>
#include <vector>

namespace rankwise::io {

/// What an engine hub tells the rest of the node. Every callback runs on a thread of the hub and must neither throw
/// nor block: as long as it runs, no rank is served by that thread.
struct engine_hub_callbacks {
  /// A rank's link changed: HELLO, registration, loss, return. On the sender thread; the loss of an engine that says
  /// itself that it is dead comes on the receiver thread, and restored ranks come on the thread that calls `restore`.
  std::function<void(link_event)> on_link_event;
  /// One rank's outputs, all that one frame brought. On the receiver thread. Never empty.
  std::function<void(core::output_batch)> on_outputs;
  /// Whether outputs may be read now. While it says false (whoever takes the batches is too far behind), nothing is
  /// read from any rank. On the receiver thread; optional.
  std::function<bool()> may_receive;
  /// A load report was put on the load board, whose reader is asleep and has to be woken. On the receiver thread; not
  /// called for pools of one rank, where there is nothing to choose.
  std::function<void()> on_load_report;
  /// The clock by which outputs and reports are stamped. On both threads.
  std::function<core::timestamp()> now;
  /// A request was handed to ZeroMQ, the given time after a front had read it. On the thread that sent it; optional.
  std::function<void(core::duration)> on_dispatched;
  /// The ranks that are registered now, all of them; called each time that one comes, goes or has a new epoch. On the
  /// sender thread; optional.
  std::function<void(std::vector<rank_record>)> on_records;
};

} // namespace rankwise::io
