#include "app/engine/engine_rank.hpp"

#include "core/placement/block_hashes.hpp"

#include "wire/sglang/engine_rid.hpp"
#include "wire/sglang/layouts.hpp"

#include <algorithm>
#include <array>

namespace rankwise::app {

namespace sglang = wire::sglang;

namespace {

// zmq_msgpack.LOAD_TAIL_REFRESH_S
constexpr core::duration load_tail_refresh = std::chrono::milliseconds(50);
constexpr int receive_batch_max = 64;

sglang::layouts registered_layouts(const engine_options& options, odd_layout odd) {
  auto layouts = options.release == engine_release::sglang_0_5_21 ? sglang::sglang_0_5_21_layouts()
                                                                  : sglang::sglang_0_5_23_layouts();
  auto& generate = layouts["TokenizedGenerateReqInput"];
  auto& sampling = layouts["SamplingParams"];
  if (odd == odd_layout::missing) {
    std::erase(sampling, "temperature");
  } else if (odd == odd_layout::inserted) {
    generate.insert(generate.begin() + 3, "rankwise_odd_field");
    sampling.insert(sampling.begin(), "rankwise_odd_field");
  }
  return layouts;
}

sglang::registration make_registration(const engine_options& options, std::uint16_t rank, odd_layout odd) {
  sglang::registration r;
  r.max_model_len = options.max_model_len;
  r.num_gpu_blocks = options.model.kv_capacity_tokens;
  r.block_size = 1;
  r.engine_version = options.release == engine_release::sglang_0_5_21 ? "sglang-0.5.21" : "sglang-0.5.23";
  const bool whole_engine = options.data_parallel_size == 0;
  r.data_parallel_size = whole_engine ? options.ranks : options.data_parallel_size;
  r.data_parallel_rank = whole_engine ? rank - options.first_rank : rank;
  r.max_num_seqs = options.model.running_requests_max;
  r.max_num_batched_tokens = options.model.chunk_tokens;
  r.kv_cache_size_tokens = options.model.kv_capacity_tokens;
  r.instance_id = options.model_name;
  r.positional_layouts = registered_layouts(options, odd);
  return r;
}

/// Decodes by what it registered, but a layout with a hole by the whole one: the node never uses it.
sglang::command_decoder make_decoder(const engine_options& options, odd_layout odd) {
  sglang::registration r;
  r.positional_layouts = registered_layouts(options, odd == odd_layout::missing ? odd_layout::none : odd);
  return *sglang::command_decoder::from_registration(r);
}

sim::engine_rank_options model_options(const engine_options& options, const engine_faults& faults) {
  sim::engine_rank_options model = options.model;
  model.role = options.role;
  model.faults = faults.model;
  return model;
}

engine_faults faults_of(const engine_options& options, std::uint16_t rank) {
  return !options.fault_rank || *options.fault_rank == rank ? options.faults : engine_faults{};
}

/// As the plugin's sockets: no high-water mark and no linger.
void prepare(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, 0);
  socket.set(zmq::sockopt::linger, 0);
}

/// Four load columns of nonsense in turn: texts, negative numbers, 2^64-1, nil and fractions, nested values.
std::string_view garbage_load(std::uint64_t turn) {
  using namespace std::string_view_literals;
  static constexpr std::array nonsense{
      "\xa4lots\xa4lots\xa4lots\xa4lots"sv, "\xff\xd0\x80\xff\xff"sv,
      "\x01\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xcf\xff\xff\xff\xff\xff\xff\xff\xff"sv,
      "\xc0\xc3\xca\x7f\x80\x00\x00\xc0"sv, "\x92\x01\x81\x01\xc0\x90\x80\x01"sv};
  return nonsense[turn % nonsense.size()];
}

} // namespace

engine_rank::engine_rank(const engine_options& options, std::uint16_t rank)
    : number_(rank), faults_(faults_of(options, rank)), block_tokens_(options.model.prefix_block_tokens),
      registration_(make_registration(options, rank, faults_.layout)), decoder_(make_decoder(options, faults_.layout)),
      model_(model_options(options, faults_), options.seed * 65'537 + rank) {}

tl::expected<engine_rank, std::string> engine_rank::dial(zmq::context_t& context, const engine_options& options,
                                                         std::uint16_t rank) {
  engine_rank result(options, rank);
  if (options.role == core::pool_role::prefill) {
    auto server = engine_kv_server::listen(context, "tcp://" + options.bootstrap_host + ":" +
                                                        std::to_string(std::uint32_t{options.bootstrap_port} + rank));
    if (!server) {
      return tl::unexpected(server.error());
    }
    result.kv_server_ = std::move(*server);
  }
  try {
    result.handshake_ = zmq::socket_t(context, zmq::socket_type::dealer);
    prepare(result.handshake_);
    result.handshake_.set(zmq::sockopt::routing_id, sglang::encode_identity(rank));
    result.handshake_.connect(options.handshake_endpoint);
    result.handshake_.send(zmq::buffer(sglang::encode_handshake({sglang::handshake_status::hello, true, true})),
                           zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    return tl::unexpected(options.handshake_endpoint + ": " + error.what());
  }
  return result;
}

bool engine_rank::wants_to_crash() const noexcept {
  return joined_ && (faults_.crash_at_start ||
                     (faults_.crash_after_requests > 0 && model_.requests_seen() >= faults_.crash_after_requests));
}

tl::expected<bool, std::string> engine_rank::finish_handshake(zmq::context_t& context) {
  zmq::message_t frame;
  if (!handshake_.recv(frame, zmq::recv_flags::dontwait)) {
    return false;
  }
  while (frame.more()) { // the last frame counts, as for the plugin
    if (!handshake_.recv(frame, zmq::recv_flags::dontwait)) {
      return tl::unexpected(std::string("INIT came in parts"));
    }
  }
  const auto init = sglang::decode_init(frame.to_string_view());
  if (!init) {
    return tl::unexpected("INIT is of no use: " + sglang::to_string(init.error()));
  }
  try {
    handshake_.send(zmq::buffer(sglang::encode_handshake({sglang::handshake_status::ready, true, true})),
                    zmq::send_flags::dontwait);
    input_ = zmq::socket_t(context, zmq::socket_type::dealer);
    prepare(input_);
    input_.set(zmq::sockopt::routing_id, sglang::encode_identity(number_));
    input_.connect(init->input_endpoint);
    input_.send(zmq::buffer(sglang::encode_registration(registration_)), zmq::send_flags::dontwait);
    output_ = zmq::socket_t(context, zmq::socket_type::push);
    prepare(output_);
    output_.connect(init->output_endpoint);
    // READY must still leave the handshake socket, whose linger of 0 would drop it.
    handshake_.set(zmq::sockopt::linger, 1000);
    handshake_.close();
  } catch (const zmq::error_t& error) {
    return tl::unexpected("INIT names " + init->input_endpoint + " and " + init->output_endpoint + ": " + error.what());
  }
  joined_ = true;
  return true;
}

bool engine_rank::receive(core::timestamp now) {
  zmq::message_t type;
  zmq::message_t payload;
  zmq::message_t ignored;
  for (int i = 0; i < receive_batch_max; ++i) {
    if (!input_.recv(type, zmq::recv_flags::dontwait)) {
      return false;
    }
    if (!type.more()) {
      continue; // one frame is no command
    }
    if (!input_.recv(payload, zmq::recv_flags::dontwait)) {
      return false;
    }
    for (bool more = payload.more(); more; more = ignored.more()) { // trace headers
      if (!input_.recv(ignored, zmq::recv_flags::dontwait)) {
        break;
      }
    }
    handle(now, type.to_string_view(), payload.to_string_view());
  }
  return true;
}

void engine_rank::handle(core::timestamp now, std::string_view type, std::string_view payload) {
  if (type.size() != 1) {
    return;
  }
  const auto kind = static_cast<std::uint8_t>(type.front());
  auto command = decoder_.decode(kind, payload);
  if (!command) {
    // As the plugin: a request that cannot be decoded is answered when its rid can be read, all else is dropped.
    if (const auto rid = kind == 0 ? sglang::peek_add_rid(payload) : std::nullopt) {
      refuse(*rid, "the scheduler could not decode the request: " + sglang::to_string(command.error()));
    }
    return;
  }
  std::visit([&](auto& c) { handle(now, std::move(c)); }, *command);
}

void engine_rank::handle(core::timestamp now, sglang::add_request add) {
  if (add.n != 1) {
    return refuse(std::move(add.rid), "n=" + std::to_string(add.n) + " is not served on this wire");
  }
  if (add.max_new_tokens < 0) {
    return refuse(std::move(add.rid),
                  "max_new_tokens must be at least 0, got " + std::to_string(add.max_new_tokens) + ".");
  }
  sim::rank_request request;
  request.rid = std::move(add.rid);
  request.input_tokens = static_cast<std::uint32_t>(add.input_ids.size());
  request.blocks = core::hash_blocks(add.input_ids, block_tokens_);
  request.max_new_tokens = static_cast<std::uint32_t>(add.max_new_tokens);
  request.stream = add.stream;
  request.bootstrap = std::move(add.bootstrap);
  model_.add(now, std::move(request), outputs_);
}

void engine_rank::handle(core::timestamp now, const sglang::abort_request& abort) {
  for (const std::string& rid : abort.rids) {
    model_.abort(now, rid, outputs_);
  }
}

void engine_rank::handle(core::timestamp, const sglang::control_request& control) {
  sglang::control_reply reply;
  reply.call_id = control.call_id;
  reply.engine_index = number_;
  if (control.method == "flush_cache") {
    // SGLang refuses while requests are open.
    reply.success = model_.requests_open() == 0;
    reply.message = reply.success ? "" : "requests are running or waiting";
    if (reply.success) {
      model_.flush_cache();
    }
  } else if (control.method == "start_profile" || control.method == "stop_profile") {
    reply.success = true;
  } else {
    reply.message = "unknown control method '" + control.method + "'";
  }
  send(sglang::encode_control_reply(reply));
}

void engine_rank::refuse(std::string rid, std::string message) {
  outputs_.aborts.push_back({std::move(rid), std::move(message), 400});
}

void engine_rank::receive_kv_queries(core::timestamp now) {
  kv_server_->receive([&](std::int64_t room, std::uint64_t query) { model_.query_kv(now, room, query); });
}

std::optional<sglang::load_tail> engine_rank::load_tail(core::timestamp now) {
  if (faults_.load == load_fault::absent) {
    return std::nullopt;
  }
  if (!sampled_load_ || now - sampled_at_ >= load_tail_refresh) {
    sampled_load_ = model_.load();
    sampled_at_ = now;
  }
  return sampled_load_;
}

void engine_rank::flush(core::timestamp now, std::vector<kv_wish>& wishes) {
  if (outputs_.empty()) {
    return;
  }
  const auto load = load_tail(now);
  if (!outputs_.batch.items.empty()) {
    outputs_.batch.engine_index = number_;
    outputs_.batch.load = load;
    const std::string_view raw_load =
        faults_.load == load_fault::garbage ? garbage_load(garbage_sent_++) : std::string_view{};
    send(sglang::encode_token_output(outputs_.batch, raw_load));
  }
  for (const sim::terminal_abort& abort : outputs_.aborts) {
    send(sglang::encode_terminal_abort(abort.rid, abort.message, abort.status, number_, load));
  }
  for (sim::kv_query& query : outputs_.queries) {
    wishes.push_back({std::move(query.rid), std::move(query.where)});
  }
  for (const sim::kv_answer& answer : outputs_.answers) {
    if (kv_server_) {
      kv_server_->answer(answer.query, answer.ready, answer.message);
    }
  }
  outputs_.clear();
}

void engine_rank::send(std::string frame) {
  // Without a high-water mark this does not block and does not fail while the context lives.
  output_.send(zmq::buffer(frame), zmq::send_flags::dontwait);
}

void engine_rank::say_dead() {
  if (!joined_) {
    return;
  }
  try {
    output_.set(zmq::sockopt::linger, 200); // long enough for the word to leave, short enough for whoever stops us
    send(std::string(sglang::engine_core_dead_frame));
  } catch (const zmq::error_t&) {
    // The node will learn it from the connection.
  }
}

} // namespace rankwise::app
