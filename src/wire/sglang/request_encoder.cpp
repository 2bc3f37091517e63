#include "wire/msgpack_writer.hpp"
#include "wire/sglang/request_codec.hpp"
#include "wire/sglang/request_fields.hpp"

#include <algorithm>

namespace rankwise::wire::sglang {

namespace {

/// Whether the request says something at this position that the engine's own default does not say.
bool speaks(request_field field, const core::sampling_params& p) {
  static const core::sampling_params defaults;
  switch (field) {
  case request_field::max_new_tokens:
    return true;
  case request_field::stop:
    return !p.stop.empty();
  case request_field::stop_token_ids:
    return !p.stop_token_ids.empty();
  case request_field::temperature:
    return p.temperature != defaults.temperature;
  case request_field::top_p:
    return p.top_p != defaults.top_p;
  case request_field::top_k:
    return p.top_k != defaults.top_k;
  case request_field::min_p:
    return p.min_p != defaults.min_p;
  case request_field::frequency_penalty:
    return p.frequency_penalty != defaults.frequency_penalty;
  case request_field::presence_penalty:
    return p.presence_penalty != defaults.presence_penalty;
  case request_field::repetition_penalty:
    return p.repetition_penalty != defaults.repetition_penalty;
  case request_field::min_new_tokens:
    return p.min_new_tokens != defaults.min_new_tokens;
  case request_field::json_schema:
    return !p.json_schema.empty();
  case request_field::regex:
    return !p.regex.empty();
  case request_field::ebnf:
    return !p.ebnf.empty();
  case request_field::structural_tag:
    return !p.structural_tag.empty();
  case request_field::ignore_eos:
    return p.ignore_eos != defaults.ignore_eos;
  case request_field::skip_special_tokens:
    return p.skip_special_tokens != defaults.skip_special_tokens;
  case request_field::spaces_between_special_tokens:
    return p.spaces_between_special_tokens != defaults.spaces_between_special_tokens;
  case request_field::no_stop_trim:
    return p.no_stop_trim != defaults.no_stop_trim;
  case request_field::stream_interval:
    return p.stream_interval.has_value();
  case request_field::logit_bias:
    return !p.logit_bias.empty();
  case request_field::sampling_seed:
    return p.sampling_seed.has_value();
  default:
    return false;
  }
}

void write_text_or_nil(msgpack_writer& writer, const std::string& text) {
  text.empty() ? writer.nil() : writer.text(text);
}

void write_constant(msgpack_writer& writer, request_field field) {
  switch (field) {
  case request_field::false_value:
    writer.boolean(false);
    break;
  case request_field::zero:
    writer.number(0);
    break;
  case request_field::one:
  case request_field::n:
    writer.number(1);
    break;
  case request_field::minus_one:
    writer.number(-1);
    break;
  case request_field::selected:
    writer.text("selected");
    break;
  default:
    writer.nil();
  }
}

void write_stop(msgpack_writer& writer, const std::vector<std::string>& stop) {
  if (stop.empty()) {
    writer.nil();
    return;
  }
  writer.array(stop.size());
  for (const std::string& text : stop) {
    writer.text(text);
  }
}

void write_stop_token_ids(msgpack_writer& writer, const std::vector<std::int64_t>& ids) {
  if (ids.empty()) {
    writer.nil();
    return;
  }
  writer.array(ids.size());
  for (const std::int64_t id : ids) {
    writer.number(id);
  }
}

void write_logit_bias(msgpack_writer& writer, const std::map<std::string, double>& bias) {
  if (bias.empty()) {
    writer.nil();
    return;
  }
  writer.map(bias.size());
  for (const auto& [token, value] : bias) {
    writer.text(token);
    writer.real(value);
  }
}

void write_sampling_field(msgpack_writer& writer, request_field field, const core::sampling_params& p) {
  switch (field) {
  case request_field::max_new_tokens:
    return writer.number(p.max_new_tokens);
  case request_field::stop:
    return write_stop(writer, p.stop);
  case request_field::stop_token_ids:
    return write_stop_token_ids(writer, p.stop_token_ids);
  case request_field::temperature:
    return writer.real(p.temperature);
  case request_field::top_p:
    return writer.real(p.top_p);
  case request_field::top_k:
    return writer.number(p.top_k);
  case request_field::min_p:
    return writer.real(p.min_p);
  case request_field::frequency_penalty:
    return writer.real(p.frequency_penalty);
  case request_field::presence_penalty:
    return writer.real(p.presence_penalty);
  case request_field::repetition_penalty:
    return writer.real(p.repetition_penalty);
  case request_field::min_new_tokens:
    return writer.number(p.min_new_tokens);
  case request_field::json_schema:
    return write_text_or_nil(writer, p.json_schema);
  case request_field::regex:
    return write_text_or_nil(writer, p.regex);
  case request_field::ebnf:
    return write_text_or_nil(writer, p.ebnf);
  case request_field::structural_tag:
    return write_text_or_nil(writer, p.structural_tag);
  case request_field::ignore_eos:
    return writer.boolean(p.ignore_eos);
  case request_field::skip_special_tokens:
    return writer.boolean(p.skip_special_tokens);
  case request_field::spaces_between_special_tokens:
    return writer.boolean(p.spaces_between_special_tokens);
  case request_field::no_stop_trim:
    return writer.boolean(p.no_stop_trim);
  case request_field::stream_interval:
    return p.stream_interval ? writer.number(*p.stream_interval) : writer.nil();
  case request_field::logit_bias:
    return write_logit_bias(writer, p.logit_bias);
  case request_field::sampling_seed:
    return p.sampling_seed ? writer.number(*p.sampling_seed) : writer.nil();
  default:
    return write_constant(writer, field);
  }
}

void write_sampling(msgpack_writer& writer, const std::vector<std::uint8_t>& layout, const core::sampling_params& p) {
  const auto last = std::find_if(layout.rbegin(), layout.rend(),
                                 [&](std::uint8_t field) { return speaks(static_cast<request_field>(field), p); });
  const auto size = static_cast<std::size_t>(layout.rend() - last);
  writer.array(size);
  for (std::size_t i = 0; i < size; ++i) {
    write_sampling_field(writer, static_cast<request_field>(layout[i]), p);
  }
}

bool is_bootstrap(request_field field) noexcept {
  return field == request_field::bootstrap_host || field == request_field::bootstrap_port ||
         field == request_field::bootstrap_room;
}

bool is_always_sent(request_field field) noexcept {
  return field == request_field::rid || field == request_field::input_ids || field == request_field::sampling_params ||
         field == request_field::stream;
}

} // namespace

wire_result<request_layout> request_layout::from_registration(const registration& r) {
  auto generate = generate_positions(r);
  if (!generate) {
    return tl::unexpected(generate.error());
  }
  auto sampling = sampling_positions(r);
  if (!sampling) {
    return tl::unexpected(sampling.error());
  }
  request_layout layout;
  layout.generate_ = std::move(*generate);
  layout.sampling_ = std::move(*sampling);
  return layout;
}

std::string request_layout::encode_add(const core::generate_request& request, std::string_view engine_rid,
                                       const std::optional<core::bootstrap_info>& bootstrap) const {
  const auto& rendezvous = bootstrap ? bootstrap : request.bootstrap;
  const auto last = std::find_if(generate_.rbegin(), generate_.rend(), [&](std::uint8_t raw) {
    const auto field = static_cast<request_field>(raw);
    return is_always_sent(field) || (rendezvous && is_bootstrap(field));
  });
  const auto size = static_cast<std::size_t>(generate_.rend() - last);
  std::string payload;
  payload.reserve(512 + 5 * request.input_ids.size());
  msgpack_writer writer(payload);
  writer.array(size + 1);
  writer.text(generate_struct);
  for (std::size_t i = 0; i < size; ++i) {
    const auto field = static_cast<request_field>(generate_[i]);
    if (is_bootstrap(field) && !rendezvous) {
      writer.nil();
      continue;
    }
    switch (field) {
    case request_field::rid:
      writer.text(engine_rid);
      break;
    case request_field::input_ids:
      writer.array(request.input_ids.size());
      for (const std::int32_t id : request.input_ids) {
        writer.number(id);
      }
      break;
    case request_field::sampling_params:
      write_sampling(writer, sampling_, request.sampling);
      break;
    case request_field::stream:
      writer.boolean(request.stream);
      break;
    case request_field::bootstrap_host:
      writer.text(rendezvous->host);
      break;
    case request_field::bootstrap_port:
      writer.number(rendezvous->port);
      break;
    case request_field::bootstrap_room:
      writer.number(rendezvous->room);
      break;
    default:
      write_constant(writer, field);
    }
  }
  return payload;
}

std::string encode_abort(const std::vector<std::string>& engine_rids) {
  std::string payload;
  msgpack_writer writer(payload);
  writer.array(engine_rids.size());
  for (const std::string& rid : engine_rids) {
    writer.text(rid);
  }
  return payload;
}

std::string encode_control(std::int64_t call_id, std::string_view method, std::string_view args) {
  std::string payload;
  msgpack_writer writer(payload);
  writer.array(3);
  writer.number(call_id);
  writer.text(method);
  args.empty() ? writer.array(0) : writer.raw(args);
  return payload;
}

} // namespace rankwise::wire::sglang
