//! Publishes to several topics and consumes from them for a time, while their brokers may change: nothing with a
//! receipt is lost, and what comes for the first time comes in order.
//!
//! `flow pulsar://host:port PREFIX SECONDS`; it prints `passed flow`. A message without a receipt is sent again: the
//! client leaves that to the application when its connection ends.

use std::time::{Duration, Instant};

use futures::{future::try_join_all, TryStreamExt};
use pulsar::{consumer::InitialPosition, Consumer, ConsumerOptions, Producer, Pulsar, SubType, TokioExecutor};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TOPICS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

async fn send(producer: &mut Producer<TokioExecutor>, number: usize) -> Result<(), Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        let sent = match producer.send_non_blocking(number.to_string()).await {
            Ok(receipt) => receipt.await,
            Err(problem) => Err(problem),
        };
        match sent {
            Ok(_) => return Ok(()),
            Err(problem) if Instant::now() > end => return Err(format!("sending {number}: {problem}").into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn flow(client: Pulsar<TokioExecutor>, topic: String, length: Duration) -> Result<(), Failure> {
    let options = ConsumerOptions { initial_position: InitialPosition::Earliest, ..Default::default() };
    let mut consumer: Consumer<String, _> = client
        .consumer()
        .with_topic(&topic)
        .with_subscription("sub")
        .with_subscription_type(SubType::Exclusive)
        .with_options(options)
        .build()
        .await?;
    let mut producer = client.producer().with_topic(&topic).build().await?;
    let mut next = 0;
    let end = Instant::now() + length;
    while Instant::now() < end {
        for number in next..next + 10 {
            send(&mut producer, number).await?;
        }
        let last = next + 9;
        while next <= last {
            let message = tokio::time::timeout(PATIENCE, consumer.try_next())
                .await
                .map_err(|_| format!("{next} of {topic} does not come"))??
                .ok_or_else(|| format!("the consumer of {topic} has ended at {next}"))?;
            let number: usize = message.deserialize()?.parse()?;
            if number > next {
                return Err(format!("{number} of {topic} came instead of {next}").into());
            }
            next = next.max(number + 1);
            consumer.ack(&message).await?;
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let length = Duration::from_secs(arguments[3].parse()?);
    let client: Pulsar<_> = Pulsar::builder(&arguments[1], TokioExecutor).build().await?;
    let flows = (0..TOPICS).map(|number| {
        let (client, topic) = (client.clone(), format!("{}-{number}", arguments[2]));
        tokio::spawn(async move { flow(client, topic, length).await })
    });
    for ended in try_join_all(flows).await? {
        ended?;
    }
    println!("passed flow");
    Ok(())
}
