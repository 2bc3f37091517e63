#include "wire/sglang/handshake.hpp"

#include "wire/msgpack_tree.hpp"
#include "wire/msgpack_writer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace rankwise::wire::sglang {

namespace {

using msgpack::object;

tl::unexpected<wire_error> fail(wire_error_kind kind, std::string_view field = {}) {
  return tl::unexpected(wire_error{kind, std::string(field)});
}

std::optional<std::string_view> text_of(const object& value) noexcept {
  if (value.type != msgpack::type::STR) {
    return std::nullopt;
  }
  return std::string_view(value.via.str.ptr, value.via.str.size);
}

/// What stands at a key, for an error that names it.
std::string shown(const object& value) {
  constexpr std::size_t text_max = 64;
  switch (value.type) {
  case msgpack::type::POSITIVE_INTEGER:
    return std::to_string(value.via.u64);
  case msgpack::type::NEGATIVE_INTEGER:
    return std::to_string(value.via.i64);
  case msgpack::type::FLOAT32:
  case msgpack::type::FLOAT64:
    return std::to_string(value.via.f64);
  case msgpack::type::BOOLEAN:
    return value.via.boolean ? "true" : "false";
  case msgpack::type::STR:
    return '"' + std::string(text_of(value)->substr(0, text_max)) + '"';
  case msgpack::type::ARRAY:
    return "an array";
  case msgpack::type::MAP:
    return "a map";
  default:
    return "bytes";
  }
}

bool is_nil(const object* value) noexcept {
  return value == nullptr || value->type == msgpack::type::NIL;
}

/// Reads keys of one map; the first wrong one is remembered, the rest are then skipped.
class map_reader {
 public:
  explicit map_reader(const object& map) : map_(map) {}

  template <class Integer>
  void number(std::string_view key, Integer& into, bool required = false) {
    const object* const value = find_key(map_, key);
    if (error_ || absent(value, key, required)) {
      return;
    }
    if (value->type != msgpack::type::POSITIVE_INTEGER) {
      error_ = wire_error{wire_error_kind::wrong_type, std::string(key), shown(*value)};
    } else if (value->via.u64 > std::numeric_limits<Integer>::max()) {
      error_ = wire_error{wire_error_kind::too_large, std::string(key), shown(*value)};
    } else {
      into = static_cast<Integer>(value->via.u64);
    }
  }

  void text(std::string_view key, std::string& into) {
    const object* const value = find_key(map_, key);
    if (error_ || absent(value, key, false)) {
      return;
    }
    if (const auto text = text_of(*value)) {
      into = *text;
    } else {
      error_ = wire_error{wire_error_kind::wrong_type, std::string(key), shown(*value)};
    }
  }

  void boolean(std::string_view key, bool& into) {
    const object* const value = find_key(map_, key);
    if (error_ || absent(value, key, false)) {
      return;
    }
    if (value->type != msgpack::type::BOOLEAN) {
      error_ = wire_error{wire_error_kind::wrong_type, std::string(key), shown(*value)};
    } else {
      into = value->via.boolean;
    }
  }

  [[nodiscard]] const std::optional<wire_error>& error() const noexcept { return error_; }

 private:
  bool absent(const object* value, std::string_view key, bool required) {
    if (!is_nil(value)) {
      return false;
    }
    if (required) {
      error_ = wire_error{wire_error_kind::missing_field, std::string(key)};
    }
    return true;
  }

  const object& map_;
  std::optional<wire_error> error_;
};

wire_result<std::vector<std::string>> read_names(const object& value, std::string_view what) {
  if (value.type != msgpack::type::ARRAY) {
    return fail(wire_error_kind::wrong_type, what);
  }
  std::vector<std::string> names;
  names.reserve(value.via.array.size);
  for (std::uint32_t i = 0; i < value.via.array.size; ++i) {
    const auto name = text_of(value.via.array.ptr[i]);
    if (!name) {
      return fail(wire_error_kind::wrong_type, what);
    }
    names.emplace_back(*name);
  }
  return names;
}

constexpr std::string_view layouts_key = "positional_layouts";

wire_result<std::map<std::string, std::vector<std::string>>> read_layouts(const object* value) {
  if (is_nil(value)) {
    return fail(wire_error_kind::missing_field, layouts_key);
  }
  if (value->type != msgpack::type::MAP) {
    return fail(wire_error_kind::wrong_type, layouts_key);
  }
  std::map<std::string, std::vector<std::string>> layouts;
  const auto& entries = value->via.map;
  for (std::uint32_t i = 0; i < entries.size; ++i) {
    const auto name = text_of(entries.ptr[i].key);
    if (!name) {
      return fail(wire_error_kind::wrong_type, layouts_key);
    }
    auto fields = read_names(entries.ptr[i].val, layouts_key);
    if (!fields) {
      return tl::unexpected(fields.error());
    }
    layouts.insert_or_assign(std::string(*name), std::move(*fields));
  }
  return layouts;
}

/// The one endpoint of ours that a rank uses: the first of the list.
wire_result<std::string> read_first_endpoint(const object& addresses, std::string_view key) {
  const object* const list = find_key(addresses, key);
  if (is_nil(list)) {
    return fail(wire_error_kind::missing_field, key);
  }
  auto endpoints = read_names(*list, key);
  if (!endpoints) {
    return tl::unexpected(endpoints.error());
  }
  if (endpoints->empty()) {
    return fail(wire_error_kind::missing_field, key);
  }
  return std::move(endpoints->front());
}

// The order in which the plugin declares the structs; any other name follows in the map's order.
constexpr std::array<std::string_view, 6> plugin_struct_order{"TokenizedGenerateReqInput", "TokenizedEmbeddingReqInput",
                                                              "EncoderDispatchErrorReq",   "SamplingParams",
                                                              "MultimodalProcessorOutput", "MultimodalDataItem"};

void write_layout(msgpack_writer& writer, const std::string& name, const std::vector<std::string>& fields) {
  writer.text(name);
  writer.array(fields.size());
  for (const std::string& field : fields) {
    writer.text(field);
  }
}

void write_layouts(msgpack_writer& writer, const std::map<std::string, std::vector<std::string>>& layouts) {
  writer.map(layouts.size());
  for (const std::string_view name : plugin_struct_order) {
    if (const auto found = layouts.find(std::string(name)); found != layouts.end()) {
      write_layout(writer, found->first, found->second);
    }
  }
  for (const auto& [name, fields] : layouts) {
    if (std::find(plugin_struct_order.begin(), plugin_struct_order.end(), name) == plugin_struct_order.end()) {
      write_layout(writer, name, fields);
    }
  }
}

} // namespace

wire_result<handshake_message> decode_handshake(std::string_view frame) {
  const auto tree = unpack_bounded(frame);
  if (!tree) {
    return tl::unexpected(tree.error());
  }
  if (tree->get().type != msgpack::type::MAP) {
    return fail(wire_error_kind::wrong_type);
  }
  map_reader reader(tree->get());
  handshake_message message;
  std::string status;
  reader.text("status", status);
  reader.boolean("local", message.local);
  reader.boolean("headless", message.headless);
  if (reader.error()) {
    return tl::unexpected(*reader.error());
  }
  if (status == "HELLO") {
    message.status = handshake_status::hello;
  } else if (status == "READY") {
    message.status = handshake_status::ready;
  } else {
    return fail(wire_error_kind::bad_status, status);
  }
  return message;
}

std::string encode_handshake(const handshake_message& message) {
  std::string frame;
  msgpack_writer writer(frame);
  writer.map(4);
  writer.text("status");
  writer.text(message.status == handshake_status::hello ? "HELLO" : "READY");
  writer.text("local");
  writer.boolean(message.local);
  writer.text("headless");
  writer.boolean(message.headless);
  writer.text("parallel_config_hash");
  writer.nil();
  return frame;
}

std::string encode_init(const init_message& message) {
  std::string frame;
  msgpack_writer writer(frame);
  writer.map(2);
  writer.text("addresses");
  writer.map(5);
  writer.text("inputs");
  writer.array(1);
  writer.text(message.input_endpoint);
  writer.text("outputs");
  writer.array(1);
  writer.text(message.output_endpoint);
  for (const std::string_view unused : {"coordinator_input", "coordinator_output", "frontend_stats_publish_address"}) {
    writer.text(unused);
    writer.nil();
  }
  writer.text("parallel_config");
  writer.map(0);
  return frame;
}

wire_result<init_message> decode_init(std::string_view frame) {
  const auto tree = unpack_bounded(frame);
  if (!tree) {
    return tl::unexpected(tree.error());
  }
  const object* const addresses = find_key(tree->get(), "addresses");
  if (is_nil(addresses)) {
    return fail(wire_error_kind::missing_field, "addresses");
  }
  auto input = read_first_endpoint(*addresses, "inputs");
  if (!input) {
    return tl::unexpected(input.error());
  }
  auto output = read_first_endpoint(*addresses, "outputs");
  if (!output) {
    return tl::unexpected(output.error());
  }
  return init_message{std::move(*input), std::move(*output)};
}

std::string encode_identity(std::uint16_t rank) {
  return {static_cast<char>(rank & 0xff), static_cast<char>(rank >> 8)};
}

wire_result<std::uint16_t> decode_identity(std::string_view frame) {
  if (frame.size() < 2) {
    return fail(wire_error_kind::truncated, "identity");
  }
  if (frame.size() > 2) {
    return fail(wire_error_kind::trailing_bytes, "identity");
  }
  const auto low = static_cast<unsigned char>(frame[0]);
  const auto high = static_cast<unsigned char>(frame[1]);
  return static_cast<std::uint16_t>(low | (high << 8));
}

wire_result<registration> decode_registration(std::string_view frame) {
  const auto tree = unpack_bounded(frame);
  if (!tree) {
    return tl::unexpected(tree.error());
  }
  const object& map = tree->get();
  if (map.type != msgpack::type::MAP) {
    return fail(wire_error_kind::wrong_type);
  }
  map_reader reader(map);
  registration r;
  reader.number("max_model_len", r.max_model_len, true);
  reader.number("num_gpu_blocks", r.num_gpu_blocks);
  reader.number("block_size", r.block_size);
  reader.text("vllm_version", r.engine_version);
  reader.number("data_parallel_size", r.data_parallel_size);
  reader.number("data_parallel_rank", r.data_parallel_rank);
  reader.number("max_num_seqs", r.max_num_seqs, true);
  reader.number("max_num_batched_tokens", r.max_num_batched_tokens);
  reader.number("kv_cache_size_tokens", r.kv_cache_size_tokens, true);
  reader.text("instance_id", r.instance_id);
  if (reader.error()) {
    return tl::unexpected(*reader.error());
  }
  auto layouts = read_layouts(find_key(map, layouts_key));
  if (!layouts) {
    return tl::unexpected(layouts.error());
  }
  r.positional_layouts = std::move(*layouts);
  return r;
}

std::string encode_registration(const registration& r) {
  std::string frame;
  frame.reserve(4096);
  msgpack_writer writer(frame);
  const auto number = [&writer](std::string_view key, std::uint64_t value) {
    writer.text(key);
    writer.unsigned_number(value);
  };
  const auto nil = [&writer](std::string_view key) {
    writer.text(key);
    writer.nil();
  };
  writer.map(20);
  number("max_model_len", r.max_model_len);
  number("num_gpu_blocks", r.num_gpu_blocks);
  number("block_size", r.block_size);
  nil("dp_stats_address");
  writer.text("dtype");
  writer.text("bfloat16");
  nil("multimodal_encoder_dtype");
  writer.text("vllm_version");
  writer.text(r.engine_version);
  number("world_size", 1);
  number("data_parallel_size", r.data_parallel_size);
  number("tensor_parallel_size", 1);
  number("pipeline_parallel_size", 1);
  number("decode_context_parallel_size", 1);
  number("data_parallel_rank", r.data_parallel_rank);
  number("max_num_seqs", r.max_num_seqs);
  number("max_num_batched_tokens", r.max_num_batched_tokens);
  writer.text("instance_id");
  writer.text(r.instance_id);
  number("kv_cache_size_tokens", r.kv_cache_size_tokens);
  nil("kv_cache_max_concurrency");
  nil("kv_events_config");
  writer.text(layouts_key);
  write_layouts(writer, r.positional_layouts);
  return frame;
}

} // namespace rankwise::wire::sglang
