//! tonic, in Rust, against the front over an echoing engine: one scenario a run, one line of result.
//!
//!     tonic_witness HOST:PORT SCENARIO [KEY=VALUE ...]
//!
//! Exit status 0 when the scenario went as its function says, 1 with the reason when not, 2 for bad arguments.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use prost::Message;
use tonic::client::Grpc;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The fields that are needed here, numbered as in src/io/front/sglang_scheduler.proto.
mod pb {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct TokenizedInput {
        #[prost(string, tag = "1")]
        pub original_text: String,
        #[prost(uint32, repeated, tag = "2")]
        pub input_ids: Vec<u32>,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct SamplingParams {
        #[prost(float, tag = "1")]
        pub temperature: f32,
        #[prost(uint32, optional, tag = "8")]
        pub max_new_tokens: Option<u32>,
        #[prost(uint32, tag = "17")]
        pub n: u32,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GenerateRequest {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(message, optional, tag = "2")]
        pub tokenized: Option<TokenizedInput>,
        #[prost(message, optional, tag = "4")]
        pub sampling_params: Option<SamplingParams>,
        #[prost(int32, tag = "6")]
        pub logprob_start_len: i32,
        #[prost(bool, tag = "17")]
        pub stream: bool,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GenerateStreamChunk {
        #[prost(uint32, repeated, tag = "1")]
        pub token_ids: Vec<u32>,
        #[prost(uint32, tag = "2")]
        pub prompt_tokens: u32,
        #[prost(uint32, tag = "3")]
        pub completion_tokens: u32,
        #[prost(uint32, tag = "8")]
        pub index: u32,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GenerateComplete {
        #[prost(uint32, repeated, tag = "1")]
        pub output_ids: Vec<u32>,
        #[prost(string, tag = "2")]
        pub finish_reason: String,
        #[prost(uint32, tag = "3")]
        pub prompt_tokens: u32,
        #[prost(uint32, tag = "4")]
        pub completion_tokens: u32,
        #[prost(uint32, tag = "11")]
        pub index: u32,
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GenerateResponse {
        #[prost(string, tag = "1")]
        pub request_id: String,
        #[prost(oneof = "Response", tags = "2, 3")]
        pub response: Option<Response>,
    }
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Response {
        #[prost(message, tag = "2")]
        Chunk(GenerateStreamChunk),
        #[prost(message, tag = "3")]
        Complete(GenerateComplete),
    }
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct HealthCheckRequest {}
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct HealthCheckResponse {
        #[prost(bool, tag = "1")]
        pub healthy: bool,
    }
}

type Outcome<T> = Result<T, String>;

const GENERATE: &str = "/sglang.grpc.scheduler.SglangScheduler/Generate";
const HEALTH_CHECK: &str = "/sglang.grpc.scheduler.SglangScheduler/HealthCheck";
const SCENARIO_LIMIT: Duration = Duration::from_secs(60);

macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+));
        }
    };
}

/// An error with everything that caused it: tonic's own text is only "transport error".
fn told(error: &(dyn Error + 'static)) -> String {
    let mut out = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        out += &format!(" < {cause}");
        next = cause.source();
    }
    out
}

fn request(rid: &str, prompt: Vec<u32>, tokens: u32) -> pb::GenerateRequest {
    pb::GenerateRequest {
        request_id: rid.into(),
        tokenized: Some(pb::TokenizedInput { original_text: String::new(), input_ids: prompt }),
        sampling_params: Some(pb::SamplingParams { temperature: 1.0, max_new_tokens: Some(tokens), n: 1 }),
        logprob_start_len: -1,
        stream: true,
    }
}

async fn ready(client: &mut Grpc<Channel>) -> Outcome<()> {
    client.ready().await.map_err(|error| told(&error))
}

/// The first part of an answer is waited for by whoever reads it.
async fn generate(
    client: &mut Grpc<Channel>,
    message: pb::GenerateRequest,
) -> Result<Streaming<pb::GenerateResponse>, Status> {
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec: ProstCodec<pb::GenerateRequest, pb::GenerateResponse> = ProstCodec::default();
    let called = client.server_streaming(Request::new(message), PathAndQuery::from_static(GENERATE), codec).await;
    Ok(called?.into_inner())
}

async fn health(client: &mut Grpc<Channel>) -> Outcome<bool> {
    ready(client).await?;
    let codec: ProstCodec<pb::HealthCheckRequest, pb::HealthCheckResponse> = ProstCodec::default();
    let path = PathAndQuery::from_static(HEALTH_CHECK);
    match client.unary(Request::new(pb::HealthCheckRequest {}), path, codec).await {
        Ok(answer) => Ok(answer.into_inner().healthy),
        Err(status) => Err(told(&status)),
    }
}

/// Reads one stream to its end: token i is (crc32(rid) + i) % 94, in chunks and again in the complete behind them.
async fn check_answer(
    mut stream: Streaming<pb::GenerateResponse>,
    rid: &str,
    prompt: usize,
    count: u32,
) -> Outcome<()> {
    let seed = u64::from(crc32fast::hash(rid.as_bytes()));
    let wanted: Vec<u32> = (0..u64::from(count)).map(|i| ((seed + i) % 94) as u32).collect();
    let mut got: Vec<u32> = Vec::new();
    let mut complete: Option<pb::GenerateComplete> = None;
    while let Some(answer) = stream.message().await.map_err(|status| format!("{rid}: {}", told(&status)))? {
        ensure!(answer.request_id == rid, "{rid}: request_id {}", answer.request_id);
        ensure!(complete.is_none(), "{rid}: something behind the complete");
        match answer.response {
            Some(pb::Response::Chunk(chunk)) => {
                got.extend(&chunk.token_ids);
                ensure!(chunk.index == 0, "{rid}: index {}", chunk.index);
                ensure!(chunk.prompt_tokens as usize == prompt, "{rid}: prompt_tokens {}", chunk.prompt_tokens);
                ensure!(
                    chunk.completion_tokens as usize == got.len(),
                    "{rid}: completion_tokens {} after {} tokens",
                    chunk.completion_tokens,
                    got.len()
                );
                ensure!(
                    got == wanted[..got.len().min(wanted.len())],
                    "{rid}: a wrong token among the first {}",
                    got.len()
                );
            }
            Some(pb::Response::Complete(last)) => complete = Some(last),
            None => return Err(format!("{rid}: an answer with nothing in it")),
        }
    }
    let complete = complete.ok_or(format!("{rid}: no complete"))?;
    ensure!(got == wanted, "{rid}: {} tokens in chunks, not {count}", got.len());
    ensure!(complete.output_ids == wanted, "{rid}: output_ids {:?}...", &complete.output_ids[..got.len().min(5)]);
    ensure!(complete.finish_reason == "length", "{rid}: finish_reason {}", complete.finish_reason);
    ensure!(complete.prompt_tokens as usize == prompt, "{rid}: prompt_tokens {}", complete.prompt_tokens);
    ensure!(complete.completion_tokens == count, "{rid}: completion_tokens {}", complete.completion_tokens);
    ensure!(complete.index == 0, "{rid}: index {}", complete.index);
    Ok(())
}

/// One stream of ten tokens, every token checked.
async fn served(client: &mut Grpc<Channel>, rid: &str) -> Outcome<()> {
    let stream = generate(client, request(rid, vec![1, 2, 3], 10)).await.map_err(|status| told(&status))?;
    check_answer(stream, rid, 3, 10).await
}

struct Witness {
    address: String,
    options: HashMap<String, String>,
}

impl Witness {
    fn option(&self, key: &str) -> Outcome<&str> {
        self.options.get(key).map(String::as_str).ok_or(format!("{key}=... is missing"))
    }
    fn number(&self, key: &str) -> Outcome<u64> {
        self.option(key)?.parse().map_err(|_| format!("{key}: no number"))
    }
    fn file(&self, key: &str) -> Outcome<Vec<u8>> {
        let path = self.option(key)?;
        std::fs::read(path).map_err(|error| format!("{path}: {error}"))
    }

    fn plain(&self) -> Outcome<Endpoint> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).map_err(|error| told(&error))?;
        Ok(endpoint.connect_timeout(Duration::from_secs(10)))
    }
    /// Trusts the authority in `ca`, and shows the certificate in `shown`.pem with `shown`.key if there is one.
    fn secure(&self, ca: &str, shown: Option<&str>) -> Outcome<Endpoint> {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.file(ca)?));
        if let Some(name) = shown {
            let identity = Identity::from_pem(self.file(&format!("{name}.pem"))?, self.file(&format!("{name}.key"))?);
            tls = tls.identity(identity);
        }
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).map_err(|error| told(&error))?;
        endpoint.connect_timeout(Duration::from_secs(10)).tls_config(tls).map_err(|error| told(&error))
    }

    async fn run(&self, scenario: &str) -> Outcome<String> {
        match scenario {
            "stream" => self.stream().await,
            "gzip" => self.gzip().await,
            "large" => self.large(self.plain()?).await,
            "tls" => self.tls().await,
            "tls-large" => self.large(self.secure("ca", None)?).await,
            "tls-wrong-ca" => self.tls_wrong_ca().await,
            "tls-plaintext" => self.tls_plaintext().await,
            "mutual" => self.mutual().await,
            "mutual-missing" => self.mutual_refused(None).await,
            "mutual-stranger" => self.mutual_refused(Some("stranger")).await,
            "keepalive-kept" => self.keepalive_kept().await,
            "keepalive-ended" => self.keepalive_ended().await,
            "drops" => self.drops().await,
            "drops-ended" => self.drops_ended().await,
            _ => Err(format!("no scenario {scenario}")),
        }
    }

    /// 200 streams at once on one connection, with prompts and answers of many lengths.
    async fn stream(&self) -> Outcome<String> {
        let client = Grpc::new(self.connect(&self.plain()?).await?);
        let mut tasks = Vec::new();
        for i in 0..200u32 {
            let mut client = client.clone();
            tasks.push(tokio::spawn(async move {
                let (rid, prompt, tokens) = (format!("tonic-{i}"), 1 + i % 50, 1 + i % 40);
                let called = generate(&mut client, request(&rid, (0..prompt).collect(), tokens)).await;
                let stream = called.map_err(|status| format!("{rid}: {}", told(&status)))?;
                check_answer(stream, &rid, prompt as usize, tokens).await?;
                Ok::<u32, String>(tokens)
            }));
        }
        let mut tokens = 0;
        for task in tasks {
            tokens += task.await.map_err(|error| error.to_string())??;
        }
        ensure!(tokens == 4100, "{tokens} tokens, not 4100");
        Ok("200 streams, 4100 tokens".into())
    }

    /// Refused with the encoding's name and the ones that are taken; the connection goes on without compression.
    async fn gzip(&self) -> Outcome<String> {
        let channel = self.connect(&self.plain()?).await?;
        let mut packing = Grpc::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
        let Err(status) = generate(&mut packing, request("packed", vec![7; 5000], 10)).await else {
            return Err("a compressed request was taken".into());
        };
        ensure!(status.code() == Code::Unimplemented, "{:?}, not Unimplemented", status.code());
        ensure!(
            status.message() == "compressed request messages are not supported: grpc-encoding is gzip",
            "told: {}",
            status.message()
        );
        let taken = status.metadata().get("grpc-accept-encoding").map(|value| value.as_bytes());
        ensure!(taken == Some(b"identity"), "grpc-accept-encoding: {taken:?}");
        served(&mut Grpc::new(channel), "unpacked").await?;
        Ok("UNIMPLEMENTED names gzip; served without".into())
    }

    /// A request of more than 8 MB.
    async fn large(&self, endpoint: Endpoint) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&endpoint).await?);
        let mut message = request("large", (0..900_000).map(|i| (1 << 28) + i).collect(), 3);
        if let Some(input) = &mut message.tokenized {
            input.original_text = "x".repeat(4_000_000);
        }
        let bytes = message.encoded_len();
        ensure!(bytes > 8_500_000 && bytes < 8_500_100, "the request has {bytes} bytes");
        let stream = generate(&mut client, message).await.map_err(|status| told(&status))?;
        check_answer(stream, "large", 900_000, 3).await?;
        Ok(format!("{bytes} bytes"))
    }

    async fn tls(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.secure("ca", None)?).await?);
        ensure!(health(&mut client).await?, "not healthy");
        served(&mut client, "tls").await?;
        Ok("served".into())
    }

    async fn tls_wrong_ca(&self) -> Outcome<String> {
        match self.secure("other-ca", None)?.connect().await {
            Ok(_) => Err("connected to a server of another authority".into()),
            Err(error) => {
                let text = told(&error);
                ensure!(text.contains("invalid peer certificate"), "another error: {text}");
                Ok(format!("refused: {text}"))
            }
        }
    }

    /// Without TLS, to a server that wants it.
    async fn tls_plaintext(&self) -> Outcome<String> {
        self.refused(&self.plain()?).await
    }

    async fn mutual(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.secure("ca", Some("client"))?).await?);
        ensure!(health(&mut client).await?, "not healthy");
        served(&mut client, "mutual").await?;
        Ok("served".into())
    }

    /// `shown` does not get in; a client of the right authority has a stream open all the while, and gets all of it.
    async fn mutual_refused(&self, shown: Option<&str>) -> Outcome<String> {
        let mut good = Grpc::new(self.connect(&self.secure("ca", Some("client"))?).await?);
        let mut open = generate(&mut good, request("open", vec![1], 100_000)).await.map_err(|status| told(&status))?;
        ensure!(open.message().await.map_err(|status| told(&status))?.is_some(), "no first token");
        let why = self.refused(&self.secure("ca", shown)?).await?;
        // What had come before counts for nothing: only tokens sent after the refusal show that it disturbed nobody.
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            ensure!(open.message().await.map_err(|status| told(&status))?.is_some(), "the open stream ended");
        }
        served(&mut good, "beside").await?;
        Ok(why)
    }

    /// Keepalives every `keepalive-ms` for `hold-ms` with a stream open on which nothing comes: nothing ends.
    async fn keepalive_kept(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.keeping_alive()?).await?);
        let call = generate(&mut client, request("quiet", vec![1], 1));
        match tokio::time::timeout(Duration::from_millis(self.number("hold-ms")?), call).await {
            Err(_) => Ok("never ended".into()),
            Ok(Ok(_)) => Err("the quiet stream got something".into()),
            Ok(Err(status)) => Err(format!("ended: {}", told(&status))),
        }
    }

    async fn keepalive_ended(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.keeping_alive()?).await?);
        let began = Instant::now();
        let Err(status) = generate(&mut client, request("quiet", vec![1], 1)).await else {
            return Err("the quiet stream got something".into());
        };
        // The first PING is allowed and two are strikes, so the fourth ends it.
        let least = Duration::from_millis(4 * self.number("keepalive-ms")?) - Duration::from_millis(50);
        ensure!(began.elapsed() >= least, "ended after {:?}", began.elapsed());
        cut_off(&status)?;
        ensure!(health(&mut client).await?, "a new connection is not served");
        Ok(told(&status))
    }

    fn keeping_alive(&self) -> Outcome<Endpoint> {
        Ok(self
            .plain()?
            .http2_keep_alive_interval(Duration::from_millis(self.number("keepalive-ms")?))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true))
    }

    /// `count` streams open at once, each dropped after its first token. The server's steps have to be slow: h2 ends a
    /// connection on which some ten thousand small DATA frames wait to be read.
    async fn drops(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.plain()?).await?);
        let count = self.number("count")?;
        self.open_and_drop(&client, count).await?;
        served(&mut client, "after").await?;
        Ok(format!("{count} streams dropped"))
    }

    /// As `drops`, of as many as the server allows; then one more.
    async fn drops_ended(&self) -> Outcome<String> {
        let mut client = Grpc::new(self.connect(&self.plain()?).await?);
        let count = self.number("count")?;
        let mut open =
            generate(&mut client, request("open", vec![1], 100_000)).await.map_err(|status| told(&status))?;
        self.open_and_drop(&client, count).await?;
        served(&mut client, "at the limit").await?;
        self.open_and_drop(&client, 1).await?;
        let status = loop {
            match open.message().await {
                Ok(Some(_)) => continue,
                Ok(None) => return Err("the open stream ended without a status".into()),
                Err(status) => break status,
            }
        };
        cut_off(&status)?;
        served(&mut client, "anew").await?;
        Ok(told(&status))
    }

    async fn open_and_drop(&self, client: &Grpc<Channel>, count: u64) -> Outcome<()> {
        let mut open = Vec::new();
        for i in 0..count {
            let mut client = client.clone();
            open.push(tokio::spawn(async move {
                let called = generate(&mut client, request(&format!("drop-{count}-{i}"), vec![1], 100_000)).await;
                let mut stream = called.map_err(|status| told(&status))?;
                let first = stream.message().await.map_err(|status| told(&status))?;
                ensure!(first.is_some(), "no first token");
                Ok::<_, String>(stream)
            }));
        }
        let mut streams = Vec::new();
        for task in open {
            streams.push(task.await.map_err(|error| error.to_string())??);
        }
        ensure!(streams.len() as u64 == count, "{} streams", streams.len());
        Ok(())
    }

    async fn connect(&self, endpoint: &Endpoint) -> Outcome<Channel> {
        endpoint.connect().await.map_err(|error| told(&error))
    }

    /// No call is served. With TLS 1.3 a client learns that its certificate is refused only after its own handshake.
    async fn refused(&self, endpoint: &Endpoint) -> Outcome<String> {
        let channel = match endpoint.connect().await {
            Ok(channel) => channel,
            Err(error) => return Ok(format!("refused: {}", told(&error))),
        };
        match health(&mut Grpc::new(channel)).await {
            Ok(_) => Err("served".into()),
            Err(text) => Ok(format!("refused: {text}")),
        }
    }
}

/// A call whose connection the server ended. h2 keeps the GOAWAY's name from calls that are under way, so the server's
/// own count tells why.
fn cut_off(status: &Status) -> Outcome<()> {
    ensure!(status.code() == Code::Unknown, "{:?}: {}", status.code(), told(status));
    let text = told(status);
    ensure!(text.contains("broken pipe") || text.contains("reset by peer"), "{text}");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options: Option<HashMap<String, String>> = arguments
        .iter()
        .skip(2)
        .map(|text| text.split_once('=').map(|(key, value)| (key.to_string(), value.to_string())))
        .collect();
    let (true, Some(options)) = (arguments.len() >= 2, options) else {
        eprintln!("tonic_witness HOST:PORT SCENARIO [KEY=VALUE ...]");
        std::process::exit(2);
    };
    let witness = Witness { address: arguments[0].clone(), options };
    let scenario = &arguments[1];
    let outcome = match tokio::time::timeout(SCENARIO_LIMIT, witness.run(scenario)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(format!("not done after {} s", SCENARIO_LIMIT.as_secs())),
    };
    match outcome {
        Ok(text) => println!("{scenario}: ok: {text}"),
        Err(text) => {
            println!("{scenario}: FAILED: {text}");
            std::process::exit(1);
        }
    }
}
