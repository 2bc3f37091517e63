#include "io/front/scheduler_front.hpp"

#include "io/front/generate_call.hpp"
#include "io/front/health_service.hpp"
#include "io/front/node_answers.hpp"
#include "io/front/protobuf_log.hpp"
#include "io/front/reflection_service.hpp"
#include "io/front/request_validation.hpp"
#include "io/front/sglang_scheduler.pb.h"

#include <google/protobuf/arena.h>

#include <atomic>
#include <mutex>
#include <variant>
#include <vector>

namespace rankwise::io::front {

namespace {

namespace pb = ::sglang::grpc::scheduler;

constexpr std::string_view service = "sglang.grpc.scheduler.SglangScheduler";
constexpr std::chrono::milliseconds node_info_age_max{250};
constexpr std::size_t prefetch_distance = 4; // events

std::string path_of(std::string_view method) {
  return "/" + std::string{service} + "/" + std::string{method};
}

template <class Message>
tl::expected<void, grpc::status> parse(Message& message, std::string_view bytes) {
  forget_protobuf_complaint();
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return {};
  }
  const auto field = protobuf_complaint_field();
  return tl::unexpected(grpc::status{grpc::status_code::invalid_argument,
                                     field.empty() ? std::string{Message::descriptor()->name()} + ": cannot be decoded"
                                                   : field + ": is not UTF-8"});
}

} // namespace

class scheduler_front::impl {
 public:
  impl(front_options o, core::request_intake& intake, const core::clock& clock)
      : options_(std::move(o)), intake_(intake), clock_(clock), validation_(options_), server_(options_.server),
        health_(server_, [this] { return !draining_.load(std::memory_order_relaxed) && intake_.info().ready; }) {
    catch_protobuf_complaints();
    shared_.intake = &intake_;
    shared_.tokens_unsent_max = options_.tokens_unsent_max;
    shared_.chunk = &chunk_;
    shared_.complete = &complete_;
    server_.on_wake([this] { take_queue(); });
    add_methods();
    health_.install({std::string{service}});
    install_reflection(server_, {std::string{service}, "grpc.health.v1.Health"});
  }

  tl::expected<void, std::string> start() {
    started_wall_ = std::chrono::system_clock::now();
    started_ = clock_.now();
    return server_.start();
  }

  void begin_drain() noexcept {
    if (draining_.exchange(true, std::memory_order_relaxed)) {
      return;
    }
    try {
      server_.post([this] { health_.refresh(); });
    } catch (...) {
      // Out of memory: watchers learn it half a second later.
    }
  }

  bool drain(std::chrono::milliseconds timeout) {
    begin_drain();
    return server_.drain(timeout);
  }

  void hurry() noexcept {
    try {
      server_.hurry();
    } catch (...) {
      // Out of memory: the drain goes on to its deadline.
    }
  }

  void stop() noexcept {
    draining_.store(true, std::memory_order_relaxed);
    server_.stop();
  }

  /// A RequestManager is gone, with all of its streams.
  struct owner_failure {
    core::owner_id owner = 0;
    core::outcome why;
  };
  using news = std::variant<core::stream_batch, owner_failure>;

  void push(news&& item) noexcept {
    {
      const std::lock_guard lock{queue_mutex_};
      const auto* batch = std::get_if<core::stream_batch>(&item);
      const auto tokens = batch == nullptr ? 1 : batch->tokens.size() + batch->events.size();
      if (overflow_ || queued_ + tokens > options_.tokens_queued_max) {
        overflow_ = true;
      } else {
        try {
          queue_.push_back(std::move(item));
          queued_ += tokens;
        } catch (...) {
          overflow_ = true;
        }
      }
    }
    server_.wake();
  }

  [[nodiscard]] front_counters counters() const noexcept {
    front_counters out;
    out.server = server_.counters();
    out.chunks = shared_.chunks.get();
    out.tokens = shared_.tokens.get();
    out.invalid = invalid_.get();
    out.slow_clients = shared_.slow_clients.get();
    out.events_late = shared_.events_late.get();
    out.events_behind_a_gap = shared_.events_behind_a_gap.get();
    out.events_bad = shared_.events_bad.get();
    out.queue_overflows = queue_overflows_.get();
    return out;
  }

  [[nodiscard]] std::uint16_t port() const noexcept { return server_.port(); }

 private:
  using queue = std::vector<news>;
  using started_call = tl::expected<std::unique_ptr<grpc::call_handler>, grpc::status>;
  using unary_answer = tl::expected<std::string, grpc::status>;

  // --- news from the node -------------------------------------------------------------------------------------------

  void take_queue() {
    bool overflow = false;
    {
      const std::lock_guard lock{queue_mutex_};
      taken_.swap(queue_);
      queued_ = 0;
      overflow = std::exchange(overflow_, false);
    }
    for (const auto& item : taken_) {
      if (const auto* batch = std::get_if<core::stream_batch>(&item); batch != nullptr) {
        deliver(*batch);
      } else {
        const auto& failed = std::get<owner_failure>(item);
        end_streams(failed.why, [&](const generate_call& call) { return call.owner() == failed.owner; });
      }
    }
    taken_.clear();
    if (overflow) {
      queue_overflows_.add();
      end_streams({core::outcome_kind::failed, core::failure::request_manager_overloaded,
                   "tokens came faster than this node's gRPC thread could pass them on", 0},
                  [](const generate_call&) { return true; });
    }
  }

  void deliver(const core::stream_batch& batch) {
    // With hundreds of streams each token finds its stream's memory cold; asking for it some events ahead lets the
    // misses overlap (about a fifth of the CPU per token at 512 streams).
    const auto count = batch.events.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (i + 3 * prefetch_distance < count) {
        server_.prefetch(batch.events[i + 3 * prefetch_distance].stream);
      }
      if (i + 2 * prefetch_distance < count) {
        if (auto* ahead = server_.find(batch.events[i + 2 * prefetch_distance].stream); ahead != nullptr) {
          static_cast<generate_call*>(ahead)->prefetch_self();
        }
      }
      if (i + prefetch_distance < count) {
        if (auto* ahead = server_.find(batch.events[i + prefetch_distance].stream); ahead != nullptr) {
          static_cast<generate_call*>(ahead)->prefetch_rest();
        }
      }
      // Stream ids are the ids of our own Generate calls, so what is found is one of them.
      if (auto* call = server_.find(batch.events[i].stream); call != nullptr) {
        static_cast<generate_call*>(call)->on_event(batch.events[i], batch);
      } else {
        shared_.events_late.add();
      }
    }
  }

  template <class Which>
  void end_streams(const core::outcome& why, Which which) {
    for (auto* call = shared_.first; call != nullptr; call = call->next()) {
      if (!call->ended() && which(*call)) {
        call->end(why);
        // Its owner may live and know it; it must not go on for nobody.
        intake_.cancel(call->stream(), call->owner(), why.reason);
      }
    }
  }

  // --- calls --------------------------------------------------------------------------------------------------------

  // Strings of node_info cost more than all of a small request's checks, and the figures may be a second old anyway.
  const core::node_info& node() {
    const auto now = clock_.now();
    if (!node_.ready || now - node_taken_ > node_info_age_max) {
      node_ = intake_.info();
      node_taken_ = now;
    }
    return node_;
  }

  tl::expected<void, grpc::status> read_metadata(const grpc::call& call, core::generate_request& request) const {
    if (const auto text = call.metadata(priority_key)) {
      const auto priority = read_priority(*text);
      if (!priority) {
        return tl::unexpected(priority.error());
      }
      request.priority = *priority;
    }
    if (const auto text = call.metadata(first_token_ms_key)) {
      const auto within = read_first_token_ms(*text);
      if (!within) {
        return tl::unexpected(within.error());
      }
      request.first_token_by = clock_.now() + std::chrono::milliseconds{*within};
    }
    return {};
  }

  started_call generate(grpc::call& call, std::string_view bytes) {
    google::protobuf::ArenaOptions arena_options;
    arena_options.initial_block = arena_block_.data();
    arena_options.initial_block_size = arena_block_.size();
    google::protobuf::Arena arena{arena_options};
    auto& request = *google::protobuf::Arena::CreateMessage<pb::GenerateRequest>(&arena);
    last_request_ = std::chrono::system_clock::now();
    auto checked = parse(request, bytes).and_then([&] { return validation_.check(request, node()); });
    if (!checked) {
      invalid_.add();
      return tl::unexpected(std::move(checked.error()));
    }
    if (draining_.load(std::memory_order_relaxed)) {
      return tl::unexpected(grpc::status{grpc::status_code::unavailable, "shutting_down: this node takes nothing new"});
    }
    if (auto read = read_metadata(call, *checked); !read) {
      invalid_.add();
      return tl::unexpected(std::move(read.error()));
    }
    if (const auto left = call.time_left()) {
      checked->deadline = clock_.now() + *left;
    }
    checked->received_at = clock_.now();
    auto handler = std::make_unique<generate_call>(shared_, call, checked->rid, checked->samples, checked->stream);
    // Last: what the intake answers is taken from the queue after this call is in the server's table.
    handler->belongs_to(intake_.submit(call.id(), std::make_shared<const core::generate_request>(std::move(*checked))));
    return handler;
  }

  unary_answer abort(std::string_view bytes) {
    pb::AbortRequest request;
    if (auto parsed = parse(request, bytes); !parsed) {
      return tl::unexpected(parsed.error());
    }
    if (request.request_id().empty()) {
      return tl::unexpected(grpc::status{grpc::status_code::invalid_argument, "request_id: is empty"});
    }
    // The gateway also aborts what has ended; an unknown rid is no error.
    intake_.abort(request.request_id());
    pb::AbortResponse answer;
    answer.set_success(true);
    answer.set_message("abort of " + request.request_id() + " is on its way");
    return answer.SerializeAsString();
  }

  unary_answer health_check() {
    const auto node = intake_.info();
    const bool draining = draining_.load(std::memory_order_relaxed);
    pb::HealthCheckResponse answer;
    answer.set_healthy(node.ready && !draining);
    answer.set_message(draining ? "shutting down" : node.ready ? "ready" : node.not_ready_reason);
    return answer.SerializeAsString();
  }

  unary_answer loads(std::string_view bytes) {
    pb::GetLoadsRequest request;
    if (auto parsed = parse(request, bytes); !parsed) {
      return tl::unexpected(parsed.error());
    }
    pb::GetLoadsResponse answer;
    const auto filled = fill_loads(request, intake_.info(), intake_.loads(), options_.loads_pool,
                                   std::chrono::system_clock::now(), answer);
    if (!filled) {
      return tl::unexpected(filled.error());
    }
    return answer.SerializeAsString();
  }

  unary_answer model_info() {
    pb::GetModelInfoResponse answer;
    fill_model_info(options_.model, intake_.info(), answer);
    return answer.SerializeAsString();
  }

  unary_answer server_info() {
    pb::GetServerInfoResponse answer;
    fill_server_info(options_, intake_.info(),
                     {started_wall_, core::to_seconds(clock_.now() - started_), last_request_}, answer);
    return answer.SerializeAsString();
  }

  void add_methods() {
    server_.add_streaming(path_of("Generate"),
                          [this](grpc::call& call, std::string_view bytes) { return generate(call, bytes); });
    server_.add_unary(path_of("Abort"), [this](grpc::call&, std::string_view bytes) { return abort(bytes); });
    server_.add_unary(path_of("HealthCheck"), [this](grpc::call&, std::string_view) { return health_check(); });
    server_.add_unary(path_of("GetLoads"), [this](grpc::call&, std::string_view bytes) { return loads(bytes); });
    server_.add_unary(path_of("GetModelInfo"), [this](grpc::call&, std::string_view) { return model_info(); });
    server_.add_unary(path_of("GetServerInfo"), [this](grpc::call&, std::string_view) { return server_info(); });
    for (const std::string_view method :
         {"Embed", "FlushCache", "StartProfile", "StopProfile", "GetTokenizer", "SubscribeKvEvents", "LoadLoRAAdapter",
          "UnloadLoRAAdapter", "ListLoadedLoRAAdapters"}) {
      server_.add_unary(path_of(method), [method](grpc::call&, std::string_view) -> unary_answer {
        return tl::unexpected(
            grpc::status{grpc::status_code::unimplemented, std::string{method} + ": not supported by this node"});
      });
    }
  }

  const front_options options_;
  core::request_intake& intake_;
  const core::clock& clock_;
  const request_validation validation_;
  std::atomic<bool> draining_{false};
  grpc::counter invalid_;
  grpc::counter queue_overflows_;

  std::mutex queue_mutex_; ///< Guards the three below.
  queue queue_;
  std::size_t queued_ = 0;
  bool overflow_ = false;

  // I/O thread only, from here on.
  queue taken_;
  pb::GenerateResponse chunk_;
  pb::GenerateResponse complete_;
  generate_shared shared_;
  core::node_info node_;
  core::timestamp node_taken_{};
  std::array<char, 8192> arena_block_;
  std::chrono::system_clock::time_point started_wall_{};
  std::chrono::system_clock::time_point last_request_{};
  core::timestamp started_{};

  // Last, so that its thread has ended when the rest goes.
  grpc::server server_;
  health_service health_;
};

scheduler_front::scheduler_front(front_options options, core::request_intake& intake, const core::clock& clock)
    : impl_(std::make_unique<impl>(std::move(options), intake, clock)) {}

scheduler_front::~scheduler_front() {
  stop();
}

tl::expected<void, std::string> scheduler_front::start() {
  return impl_->start();
}

std::uint16_t scheduler_front::port() const noexcept {
  return impl_->port();
}

void scheduler_front::begin_drain() noexcept {
  impl_->begin_drain();
}

bool scheduler_front::drain(std::chrono::milliseconds timeout) {
  return impl_->drain(timeout);
}

void scheduler_front::hurry() noexcept {
  impl_->hurry();
}

void scheduler_front::stop() noexcept {
  impl_->stop();
}

void scheduler_front::deliver(core::stream_batch&& batch) noexcept {
  impl_->push(std::move(batch));
}

void scheduler_front::fail_owner(core::owner_id owner, core::outcome why) noexcept {
  impl_->push(impl::owner_failure{owner, std::move(why)});
}

front_counters scheduler_front::counters() const noexcept {
  return impl_->counters();
}

} // namespace rankwise::io::front
